#!/bin/bash
# Run experiments of `anyformer lab` on one GPU, one after another: bash benchmarks/lab_gpu.sh FOLDER SECONDS NAME ...
# Environment: JOBS trainings at once (6), the form FORM (full), a text file DATA (optional). Finished trainings are kept
# when the time is over; the same command continues with the rest. FOLDER.tgz contains all results and what is needed to
# continue, without the weights.
folder=${1:?a folder} seconds=${2:?seconds}
shift 2
export PYTHONPATH=src PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=${TOKENIZERS_PARALLELISM:-false}
mkdir -p "$folder"
for name; do
    if [ $((seconds - SECONDS)) -lt 15 ]; then
        echo "$name: no time left"
        continue
    fi
    timeout $((seconds - SECONDS)) python -m anyformer_course lab run "$name" --form "${FORM:-full}" --jobs "${JOBS:-6}" \
        --device "${DEVICE:-auto}" ${DATA:+--data "$DATA"} --out "$folder/$name" 2>&1 | sed -u "s/^/$name: /;s/anyformer: //"
    echo "$name: ended after $SECONDS s"
done
find "$folder" -name results.jsonl -o -name claim.json -o -name plot.png -o -name trial.json -o -name rows.jsonl \
    | tar czf "$folder.tgz" -T -
