# dapo with vLLM for CUDA. From the repository's folder:
#
#   docker build -f containers/cuda.Dockerfile -t dapo-cuda .
#   docker run --rm --gpus all --ipc=host -v "$PWD/runs:/runs" dapo-cuda make gpu PYTHON=python
#   docker run --rm --gpus all --ipc=host -v "$PWD/runs:/runs" dapo-cuda dapo train gsm8k_0.5b_1gpu run.dir=/runs
#
# Nobody has built it: its packages were resolved by pip (a slow test does so), and no more. torch's and vLLM's wheels bring
# CUDA's libraries; the driver is the host's (580 or newer for CUDA 13), through the NVIDIA container toolkit.
FROM python:3.12-slim-bookworm

ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONUNBUFFERED=1

# gcc and the C library's headers: Triton compiles its launchers. git: results name the commit.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc g++ libc6-dev git make \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /dapo
COPY constraints/vllm-cuda.txt constraints/vllm-cuda.txt
# By itself, so that a change of the code does not fetch some ten gigabytes again.
RUN pip install -c constraints/vllm-cuda.txt vllm==0.32.0

COPY . .
RUN pip install -c constraints/vllm-cuda.txt ".[vllm,report,data,vllm_server]"

CMD ["make", "gpu", "PYTHON=python"]
