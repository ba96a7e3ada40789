#!/bin/sh
# Makes the venv in folder $1 with the Python $2, by itself with the fastest that is found.
#
# The stamp inside says that it is whole. A venv without one was left half-made, and is made again from the start.
set -eu

venv=$1
python=${2:-}
stamp=$venv/.stamp-venv

# Whoever waited for another make finds its work done.
[ -e "$stamp" ] && exit 0

if [ -n "$python" ]; then
  command -v "$python" >/dev/null || { echo "PYTHON=$python: there is no such program on the PATH." >&2; exit 1; }
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "PYTHON=$python: Millstream needs Python 3.11 or newer." >&2; exit 1; }
else
  python=$(sh "$(dirname "$0")/fastest_python.sh")
  [ -n "$python" ] || { echo "Millstream needs Python 3.11 or newer; please install it." >&2; exit 1; }
fi

echo "The venv is made with $python."
"$python" -m venv --clear "$venv"
touch "$stamp"
