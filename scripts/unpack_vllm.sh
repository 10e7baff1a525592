#!/bin/sh
# Unpack a vLLM tree that was carried to an offline GPU host in parts, and say how to use it.
#
#     scripts/unpack_vllm.sh PARTS TARGET
#     eval "$(scripts/unpack_vllm.sh PARTS TARGET)"      # and use it at once
#
# PARTS holds the pieces of one xz archive, vllm.tar.xz.01, .02, …, in any sub-folders. The tree is for running vLLM's
# kernels, not for serving: it needs a python3 with the torch and CUDA that the wheel was built for.
set -eu

if [ $# -ne 2 ]; then
    echo "usage: $0 PARTS TARGET" >&2
    exit 2
fi
parts=$(find "$1" -name 'vllm.tar.xz.[0-9]*' | awk -F/ '{print $NF "\t" $0}' | sort | cut -f2)
if [ -z "$parts" ]; then
    echo "$0: no vllm.tar.xz.NN under $1" >&2
    exit 2
fi
mkdir -p "$2"
target=$(cd "$2" && pwd)
echo "$parts" | tr '\n' '\0' | xargs -0 cat | xz -dc -T0 | tar xf - -C "$target"
echo "export PYTHONPATH=$target:$target/nvidia_cutlass_dsl/dsl_packages\${PYTHONPATH:+:\$PYTHONPATH}"
