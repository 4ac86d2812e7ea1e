#!/bin/bash
# Starts, re-enters or fetches a training container, with the flags that the guides of ROCm's tools print.
#
#   docker/run.sh megatron         a new container, megatron_training_env, with a shell in it
#   docker/run.sh megatron start   the container that was left, started again
#   docker/run.sh megatron exec    another shell in it
#   docker/run.sh megatron pull    fetch the image of IMAGE
#
#   megatron  as the guide of Megatron-LM for ROCm: 64 GB of shared memory
#   primus    as that of Primus: primus_training_env, 128 GB
#   pytorch   as that of PyTorch training: training_env, 64 GB, without RDMA devices
#
#   IMAGE         the image; DOCKER_IMAGE, the guides' word, means the same (megalith:rocm, which Dockerfile.rocm makes)
#   INFINIBAND    1 hands over /dev/infiniband, 0 does not (1 where there is such a folder)
#   DOCKER        docker or podman (docker where both are)
#   DRY_RUN=1     print the command, and run nothing
set -euo pipefail

fail() {
  echo "error: $1" >&2
  echo "  $2" >&2
  exit 2
}

case ${1:-} in
  megatron) name=megatron_training_env shm=64G has_rdma=1 has_keys=1 ;;
  primus) name=primus_training_env shm=128G has_rdma=1 has_keys='' ;;
  pytorch) name=training_env shm=64G has_rdma='' has_keys=1 ;;
  *) fail "docker/run.sh '${1:-}': no such container" "name one: megatron, primus or pytorch" ;;
esac
[ $# -le 2 ] || fail "docker/run.sh $*: '$3' is one word too many" "give a container and at most one of start, exec, pull"

if [ -n "${IMAGE:-}" ] && [ -n "${DOCKER_IMAGE:-}" ] && [ "$IMAGE" != "$DOCKER_IMAGE" ]; then
  fail "IMAGE is $IMAGE, and DOCKER_IMAGE is $DOCKER_IMAGE" "set one of them"
fi
own_image=megalith:rocm
image=${IMAGE:-${DOCKER_IMAGE:-$own_image}}

infiniband=${INFINIBAND:-$([ -d /dev/infiniband ] && echo 1 || echo 0)}
case $infiniband in
  0 | 1) ;;
  *) fail "INFINIBAND is '$infiniband'" "set 1 to hand over /dev/infiniband, 0 not to" ;;
esac

docker=${DOCKER:-}
for candidate in docker podman; do
  if [ -z "$docker" ] && command -v "$candidate" >/dev/null; then docker=$candidate; fi
done
: "${docker:=docker}"

case ${2:-run} in
  run)
    words=(run -it --device /dev/dri --device /dev/kfd)
    if [ -n "$has_rdma" ] && [ "$infiniband" = 1 ]; then words+=(--device /dev/infiniband); fi
    words+=(--network host --ipc host --group-add video --cap-add SYS_PTRACE --security-opt seccomp=unconfined
      --privileged -v "$HOME:$HOME")
    if [ -n "$has_keys" ]; then words+=(-v "$HOME/.ssh:/root/.ssh"); fi
    words+=(--shm-size "$shm" --name "$name" "$image")
    ;;
  start) words=(start "$name") ;;
  exec) words=(exec -it "$name" bash) ;;
  pull)
    [ "$image" != "$own_image" ] ||
      fail "$own_image is in no registry" \
        "build it (docker build -f docker/Dockerfile.rocm -t $own_image .), or name another with IMAGE"
    words=(pull "$image")
    ;;
  *) fail "docker/run.sh $1 '$2': no such command" "give start, exec, pull or nothing" ;;
esac

case ${DRY_RUN:-0} in 0 | false) is_dry=0 ;; *) is_dry=1 ;; esac
if [ "$is_dry" = 1 ]; then
  printf '%q ' "$docker" "${words[@]}" | sed 's/ $/\n/'
  exit 0
fi
command -v "$docker" >/dev/null || fail "there is no $docker here" "install Docker or Podman, or name it with DOCKER"
exec "$docker" "${words[@]}"
