#!/bin/bash
# Run experiments of `anyformer lab` on one GPU, one after another: bash benchmarks/lab_gpu.sh FOLDER SECONDS [NAME ...]
# Without names: all that are not judged yet, the order that judges most claims in 30 minutes on an H200 (the first ten).
# Environment: JOBS trainings at once (6), the form FORM (full), DATA: the folder of data sets (GLUE and others, MiniLM in
# minilm/) for the experiments that read them. Finished experiments are skipped and finished trainings are kept when the
# time is over; the same command continues with the rest. After every experiment FOLDER.tgz has all results and what is
# needed to continue, without the weights.
folder=${1:?a folder} seconds=${2:?seconds}
shift 2
[ $# -gt 0 ] || set -- what-tuning-changes induction-heads transformer-and-recurrence encoders-generate-badly \
    many-to-many sharing batch-size pixel-attention-or-convolution objectives switch-scaling modifications \
    frozen-or-full-fine-tuning larger-learn-from-fewer images-by-data scaling-laws next-sentence electra \
    speech-from-few-labels
export PYTHONPATH=src PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=${TOKENIZERS_PARALLELISM:-false}
mkdir -p "$folder"
for name; do
    if [ -f "$folder/$name/claim.json" ] && ! grep -q '"verdict": "unfinished"' "$folder/$name/claim.json"; then
        echo "$name: finished before"
        continue
    fi
    if [ $((seconds - SECONDS)) -lt 15 ]; then
        echo "$name: no time left"
        continue
    fi
    data=
    case $name in electra | next-sentence | what-tuning-changes | frozen-or-full-fine-tuning) data=$DATA ;; esac
    timeout $((seconds - SECONDS)) "${PYTHON:-python}" -m anyformer_course lab run "$name" --form "${FORM:-full}" \
        --jobs "${JOBS:-6}" --device "${DEVICE:-auto}" ${data:+--data "$data"} --out "$folder/$name" 2>&1 |
        sed -u "s/^/$name: /;s/anyformer: //"
    echo "$name: ended after $SECONDS s"
    find "$folder" -name results.jsonl -o -name claim.json -o -name plot.png -o -name trial.json -o -name rows.jsonl \
        -o -name cpu_seconds.txt -o -name seconds.json | tar czf "$folder.tgz" -T -
done
