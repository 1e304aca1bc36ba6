#!/usr/bin/env bash
# Proves the README's commands on a fresh machine: makes a minimal Debian 12 with debootstrap, clones the last commit into
# it and runs a command there. Needs root, debootstrap and 6 GB.
#   tools/try_in_minimal_root.sh FOLDER [COMMAND ...]        COMMAND is ./quickstart.sh when not given
# FOLDER is made when absent and used again otherwise, so a second call shows what a second run does. The mirror and the
# proxy are the host's; so are pip's settings (PIP_* variables, pip.conf, the certificates that PIP_CERT names).
set -Eeuo pipefail
source_folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
suite=bookworm

if (($# == 0)) || [[ $1 == -* ]]; then
  sed -n '2,6s/^# \{0,1\}//p' "$0"
  exit 2
fi
root=$1
shift
if (($# == 0)); then set -- ./quickstart.sh; fi
if [[ $(id -u) != 0 ]] || ! command -v debootstrap > /dev/null; then
  echo "$0: root and debootstrap are needed (apt-get install debootstrap)." >&2
  exit 1
fi

if [[ ! -e $root/complete ]]; then
  # shellcheck disable=SC2016  # apt's own notation
  mirror=$(apt-get indextargets --format '$(SITE)' "Codename: $suite" 2> /dev/null | head -n 1)
  echo "== Making a minimal Debian ($suite) in $root from ${mirror:=http://deb.debian.org/debian}"
  rm -rf "$root"
  mkdir -p "$root"
  debootstrap --variant=minbase "$suite" "$root" "$mirror" > "$root.log" ||
    { tail -n 5 "$root.log" >&2; exit 1; }
  touch "$root/complete"
fi
root=$(cd "$root" && pwd)

# The host's settings, so that the same network is reached: proxy, index, certificates, apt's options.
settings=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8)
while IFS='=' read -r name value; do
  case $name in
    http_proxy | https_proxy | no_proxy | HTTP_PROXY | HTTPS_PROXY | NO_PROXY | PIP_*) settings+=("$name=$value") ;;
  esac
done < <(env)
if [[ -f ${PIP_CERT:-} ]]; then
  cp -L "$PIP_CERT" "$root/etc/host-certificates.pem"
  settings+=(PIP_CERT=/etc/host-certificates.pem)
fi
if [[ -f /etc/pip.conf ]]; then cp /etc/pip.conf "$root/etc/pip.conf"; fi
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
printf 'Acquire::Check-Date "false";\n' > "$root/etc/apt/apt.conf.d/99host"

clone=$root/root/torchamp
if [[ -d $clone ]]; then
  git -C "$clone" pull --quiet --ff-only "$source_folder" HEAD
else
  git clone --quiet "$source_folder" "$clone"
fi
echo "== In $root, commit $(git -C "$clone" rev-parse --short HEAD): $*"
exec unshare --mount --pid --fork --kill-child --mount-proc="$root/proc" \
  chroot "$root" env -i "${settings[@]}" bash -c 'cd ~/torchamp && exec "$@"' in-root "$@"
