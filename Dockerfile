# vitlet with the versions of requirements.lock. Not built in CI: it needs a container runtime and a base image.
#
#   docker build -t vitlet .                                                           CPU
#   docker build -t vitlet --build-arg BASE=nvidia/cuda:13.0.1-runtime-ubuntu24.04 .   NVIDIA GPU
#   docker run --rm -v "$PWD:/work" vitlet train photos --minutes 30                   add --gpus all for a GPU
ARG BASE=python:3.12-slim
FROM ${BASE}

# A base without Python, such as CUDA's on Ubuntu, gets its distribution's.
RUN command -v python3 >/dev/null || { apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*; }

WORKDIR /opt/vitlet
COPY requirements.lock pyproject.toml README.md LICENSE ./
RUN python3 -m venv /opt/venv && /opt/venv/bin/pip install --no-cache-dir --require-hashes -r requirements.lock
COPY src ./src
RUN /opt/venv/bin/pip install --no-cache-dir --no-deps .

ENV PATH=/opt/venv/bin:$PATH
WORKDIR /work
ENTRYPOINT ["vitlet"]
CMD ["--help"]
