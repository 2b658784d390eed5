# Comity without data: docker build -t comity . && docker run --rm -v "$PWD:/work" comity run fedavg --rounds 5
# PyPI's torch brings gigabytes for GPUs, on which nothing was ever tested. Without them: --build-arg TORCH_INDEX=..., the address
# that PyTorch's page about installing names for CPU. A server or a site of a federation: --build-arg EXTRAS=data,sites (compose.yaml).
FROM python:3.11-slim

ARG TORCH_INDEX=
ARG EXTRAS=data

WORKDIR /comity
COPY pyproject.toml constraints.txt README.md LICENSE ./
# torch first, exactly as in the constraints: a looser request would take another build.
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' constraints.txt)"
COPY src ./src
RUN pip install --no-cache-dir -c constraints.txt ".[$EXTRAS]"

# Nobody needs to be root to learn. Results go to /work, and datasets, which are not in the image, are looked for in /data.
RUN useradd --create-home --uid 1000 comity && mkdir /work /data && chown comity:comity /work /data
USER comity
WORKDIR /work
ENV COMITY_DATA=/data OMP_NUM_THREADS=1
ENTRYPOINT ["comity"]
