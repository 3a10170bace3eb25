#!/bin/bash
# Experiments of `anyformer lab` at once on one GPU: bash benchmarks/lab_gpu.sh OUT [SECONDS] [FORM] [NAME ...]
# What is done when the time is over stays; the same command goes on with the rest.
out=${1:?a folder} seconds=${2:-540} form=${3:-full}
shift; shift; shift
export PYTHONPATH=src OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
names=${*:-$(python -m anyformer lab list | tail -n +2 | cut -d' ' -f1)}
mkdir -p "$out"
for name in $names; do
    timeout "$seconds" python -m anyformer lab run "$name" --form "$form" --jobs "${JOBS:-3}" --out "$out/$name" \
        > "$out/$name.log" 2>&1 &
done
wait
for name in $names; do
    tail -n 20 "$out/$name.log"
    rm -rf "$out/$name/shared" "$out/$name"/trials/*/{run,pretrained,tuned}
done
