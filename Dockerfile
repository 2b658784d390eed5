# Comity without data: docker build -t comity . && docker run --rm -v "$PWD:/work" comity run fedavg --rounds 5
# PyPI's torch is the CUDA build, with several gigabytes of GPU packages, and no GPU was ever tried. For the CPU build:
# --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu. For a server or a site: --build-arg EXTRAS=data,sites (compose.yaml).
FROM python:3.11-slim

ARG TORCH_INDEX=
ARG EXTRAS=data

WORKDIR /comity
COPY pyproject.toml constraints.txt README.md LICENSE ./
# torch first, exactly as in the constraints, because only torch is taken from TORCH_INDEX.
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' constraints.txt)"
COPY src ./src
RUN pip install --no-cache-dir -c constraints.txt ".[$EXTRAS]"

# Nobody needs to be root to learn. Results go to /work, and datasets, which are not in the image, are looked for in /data.
RUN useradd --create-home --uid 1000 comity && mkdir /work /data && chown comity:comity /work /data
USER comity
WORKDIR /work
ENV COMITY_DATA=/data OMP_NUM_THREADS=1
ENTRYPOINT ["comity"]
