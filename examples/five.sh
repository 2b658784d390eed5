#!/bin/sh
# The five methods beside SOLO and FedAvg on the embedded digits, three seeds: label skew, then feature skew.
# About five minutes on two cores. The same command again goes on where it was stopped.
set -eu
COMITY=${1:-comity}
OUT=${2:-runs/five}
METHODS="fedavg adcol fedufo fedavg+dbe fed-sps relay relay-p2p"

echo "Label skew: ten parties with a few classes each (Dirichlet 0.1), a small perceptron, 40 rounds."
"$COMITY" compare $METHODS --partition "dirichlet(alpha=0.1)" --parties 10 --rounds 40 --seeds 0,1,2 --out "$OUT/label"

echo "Feature skew: six parties that see all classes, each through another distortion, a small BatchNorm CNN, 30 rounds."
"$COMITY" compare $METHODS --partition "iid|shift(kinds=none,rotate,invert,noise,blur,contrast)" --parties 6 \
    --model "fedbn-cnn(scale=0.125)" --batch 32 --lr 0.02 --epochs 2 --rounds 30 --seeds 0,1,2 --out "$OUT/feature"
