#!/bin/bash
# Run experiments of `anyformer lab` on one GPU, one after another: bash benchmarks/lab_gpu.sh FOLDER SECONDS [NAME ...]
# Without names: all that are not judged yet, cheap ones first. Four such scripts with JOBS=1, each with its own names,
# ran ten experiments in 25 minutes on an H200. next-sentence needs seqeval.
# batch-size measures the seconds of a step before its first training: start it while nothing else runs on the GPU.
# Environment: JOBS trainings at once (4), the form FORM (full), DATA: the folder of data sets (GLUE and others, MiniLM in
# minilm/) for the experiments that read them. Finished experiments are skipped and finished trainings are kept when the
# time is over; the same command continues with the rest. After every experiment FOLDER.tgz has all results and what is
# needed to continue, without the weights.
folder=${1:?a folder} seconds=${2:?seconds}
shift 2
[ $# -gt 0 ] || set -- next-sentence
# With NVIDIA's MPS the kernels of several processes run side by side. On an H200, four processes that replayed a graph
# of 200 small products did 1.74 times as many per second.
export CUDA_MPS_PIPE_DIRECTORY=${CUDA_MPS_PIPE_DIRECTORY:-/tmp/mps} CUDA_MPS_LOG_DIRECTORY=${CUDA_MPS_LOG_DIRECTORY:-/tmp/mps}
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY"
nvidia-cuda-mps-control -d 2>/dev/null || true # it is not installed, or runs already
# Without expandable segments, one of four processes once reserved 99 GB, of which it used 11.
export PYTORCH_CUDA_ALLOC_CONF=${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}
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
        --jobs "${JOBS:-4}" --device "${DEVICE:-auto}" ${data:+--data "$data"} --out "$folder/$name" 2>&1 |
        sed -u "s/^/$name: /;s/anyformer: //"
    echo "$name: ended after $SECONDS s"
    find "$folder" -name results.jsonl -o -name claim.json -o -name plot.png -o -name trial.json -o -name rows.jsonl \
        -o -name cpu_seconds.txt -o -name seconds.json | tar czf "$folder.tgz" -T -
done
