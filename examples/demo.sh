#!/bin/sh
# The demo: the five methods on real handwritten digits, once with different sensors, once with different labels.
# Usage: sh examples/demo.sh [path of the comity command]
set -eu
comity=${1:-comity}
rm -rf demo

echo "Six sites see the same digits through different sensors (none, inverted, rotated, noisy, low contrast, blurred):"
"$comity" compare fedavg fedbn adcol fedufo fedavg+dbe fed-sps relay \
    --partition "iid|shift(kinds=none,invert,rotate,noise,contrast,blur)" --parties 6 \
    --model "fedbn-cnn(scale=0.125)" --batch 32 --lr 0.02 --epochs 2 --rounds 30 --out demo/feature-skew --no-report

echo
echo "Ten sites hold different digits (Dirichlet 0.1):"
"$comity" compare fedavg adcol fedufo fedavg+dbe fed-sps relay \
    --partition "dirichlet(alpha=0.1)" --parties 10 --rounds 40 --out demo/label-skew --no-report

echo
"$comity" report demo
