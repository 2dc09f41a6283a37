# Sourced by fuselimit and fusemd: null_mount MODE mounts fuse_limit at $mountpoint, null_umount ends it.
# LIMITS_DIR holds what is built and the 512 MiB of random data (default: a folder under /tmp); THREADS: of the server;
# READ_AHEAD_KB: of the kernel, for buffered reads (default: the kernel's).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=${LIMITS_DIR:-${TMPDIR:-/tmp}/sluice-limits}
data_len=$((512 << 20))
pipe_max_needed=$((4 << 20))

mkdir -p "$dir"
sources=("$here"/{fuse_limit,serve,names,sender}.c)
newest=$(ls -t "${sources[@]}" "$here/fuse_limit.h" | head -1)
if [[ ! $dir/fuse_limit -nt $newest ]]; then
  gcc -O2 -Wall -Wextra -pthread "${sources[@]}" -o "$dir/fuse_limit"
fi
if [[ $(stat -c %s "$dir/data" 2>/dev/null || echo 0) != "$data_len" ]]; then
  head -c "$data_len" /dev/urandom > "$dir/data"
fi
cat "$dir/data" > /dev/null # into the page cache

mountpoint=$(mktemp -d "$dir/mnt.XXXXXX")
log=$mountpoint.log
pipe_max=$(cat /proc/sys/fs/pipe-max-size)

null_end() {
  umount -l "$mountpoint" 2>/dev/null || true
  rmdir "$mountpoint" 2>/dev/null || true
  rm -f "$log"
  [[ $(cat /proc/sys/fs/pipe-max-size) == "$pipe_max" ]] || echo "$pipe_max" > /proc/sys/fs/pipe-max-size
}
trap null_end EXIT

null_mount() {
  (( pipe_max >= pipe_max_needed )) || echo $((2 * pipe_max_needed)) > /proc/sys/fs/pipe-max-size
  "$dir/fuse_limit" "$dir/data" "$1" "$mountpoint" "${THREADS:-4}" 2>"$log" &
  null_pid=$!
  for _ in $(seq 50); do
    if [[ -f $mountpoint/f ]]; then
      [[ -z ${READ_AHEAD_KB:-} ]] || echo "$READ_AHEAD_KB" > "/sys/class/bdi/$(mountpoint -d "$mountpoint")/read_ahead_kb"
      return 0
    fi
    sleep 0.1
  done
  echo "the limit program did not mount: $(cat "$log")" >&2
  exit 1
}

null_umount() {
  umount "$mountpoint"
  wait "$null_pid" || true
  cat "$log" >&2
}
