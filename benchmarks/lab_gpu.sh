#!/bin/bash
# Every experiment of `anyformer lab` in its full form at once on one GPU: bash benchmarks/lab_gpu.sh OUT [SECONDS] [FORM]
# What is done when the time is over stays; the same command goes on with the rest.
out=${1:?a folder} seconds=${2:-540} form=${3:-full}
export PYTHONPATH=src OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
mkdir -p "$out"
for name in $(python -m anyformer lab list | tail -n +2 | cut -d' ' -f1); do
    timeout "$seconds" python -m anyformer lab run "$name" --form "$form" --jobs 3 --out "$out/$name" > "$out/$name.log" 2>&1 &
done
wait
tail -n 20 "$out"/*.log
rm -rf "$out"/*/shared "$out"/*/trials/*/run "$out"/*/trials/*/pretrained "$out"/*/trials/*/tuned
