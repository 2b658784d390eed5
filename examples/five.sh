#!/bin/sh
# The demo's two federations of digits, with all methods and three seeds: seven to eight minutes on two quiet cores of an
# AMD EPYC.
# Run the same command again to continue after an interruption.
set -eu
COMITY=${1:-comity}
OUT=${2:-runs/five}

echo "Few labels: twenty sites with 25 labelled digits each, some more of one class than of another, a small perceptron."
"$COMITY" compare fedavg fedavg+dbe adcol fedufo "fed-sps(peers=4)" relay relay-p2p --seeds 0,1,2 \
    --partition "dirichlet(alpha=1,min=35)|keep(samples=25)" --parties 20 --rounds 30 --out "$OUT/few-labels"

echo "Sensors: twelve sites, in pairs with the same kind of sensor, with 50 labelled digits each, a small BatchNorm CNN."
"$COMITY" compare fedavg fedbn fedavg+dbe adcol fedufo "fed-sps(peers=4)" relay relay-p2p --seeds 0,1,2 \
    --partition "iid|keep(samples=50)|shift(kinds=none,invert,rotate,noise,contrast,blur)" --parties 12 --engine process \
    --model "fedbn-cnn(scale=0.125)" --batch 16 --lr 0.02 --epochs 2 --rounds 30 --out "$OUT/sensors"

echo "Sensors again: the methods that average models, with each site's own running statistics of BatchNorm."
"$COMITY" compare fedavg fedavg+dbe fedufo --bn params_only --seeds 0,1,2 \
    --partition "iid|keep(samples=50)|shift(kinds=none,invert,rotate,noise,contrast,blur)" --parties 12 --engine process \
    --model "fedbn-cnn(scale=0.125)" --batch 16 --lr 0.02 --epochs 2 --rounds 30 --out "$OUT/sensors-own-statistics"
