# Comity on the CPU, without data: docker build -t comity . && docker run --rm -v "$PWD:/work" comity run fedavg --rounds 5
# For a GPU, another index of torch's: --build-arg TORCH_INDEX=... (nothing was ever tested on one).
FROM python:3.11-slim

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=data

WORKDIR /comity
COPY pyproject.toml constraints.txt README.md LICENSE ./
# torch first, exactly as in the constraints and by itself: any other request for it pulls gigabytes of GPU packages.
RUN pip install --no-cache-dir --no-deps --index-url "$TORCH_INDEX" "$(grep '^torch==' constraints.txt)"
COPY src ./src
RUN pip install --no-cache-dir -c constraints.txt ".[$EXTRAS]"

# Nobody needs to be root to learn. Results go to /work, and datasets, which are not in the image, are looked for in /data.
RUN useradd --create-home --uid 1000 comity && mkdir /work /data && chown comity:comity /work /data
USER comity
WORKDIR /work
ENV COMITY_DATA=/data OMP_NUM_THREADS=1
ENTRYPOINT ["comity"]
