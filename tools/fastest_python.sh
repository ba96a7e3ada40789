#!/bin/sh
# Prints the Python to make the venv with: the fastest build of the first version on the PATH that will do.
#
# Builds of one version differ by half: those of distributions are optimized with a profile, those that a version
# manager compiles often are not. Neither says so in a way that can be asked for, hence the stopwatch. A build must be
# clearly faster than the first one found to be preferred to it. As machines are noisy, all are timed in turns and by the
# processor time they need.
set -eu

probe='
import ensurepip, os, sqlite3, ssl, sys, time, venv

if sys.version_info < (3, 11):
    sys.exit(1)


class Stream:
    __slots__ = ("tail", "key")

    def __init__(self, key):
        self.key, self.tail = key, 0


def work():
    streams = {}
    for number in range(20_000):
        key = b"stream-%d" % (number % 500)
        stream = streams.get(key)
        if stream is None:
            stream = streams[key] = Stream(key)
        stream.tail += len(key)


def timed():
    start = time.process_time()
    work()
    return time.process_time() - start


print("%d.%d" % sys.version_info[:2], min(timed() for _ in range(7)), os.path.realpath(sys.executable))
'

# Each file is run, and once: a name on the PATH may be a shim for nothing, or another name of the same file.
candidates() {
  seen=' '
  IFS=:
  for name in python3.11 python3 python3.12 python3.13; do
    for folder in $PATH; do
      [ -x "$folder/$name" ] || continue
      file=$(readlink -f "$folder/$name")
      case $seen in *" $file "*) continue ;; esac
      seen="$seen$file "
      "$folder/$name" -c "$probe" 2>/dev/null || true
    done
  done
}

{ candidates && candidates && candidates; } | awk '
  NR == 1 { version = $1 }
  $1 != version { next }
  { seconds = $2; sub(/^[^ ]+ [^ ]+ /, "") }
  !($0 in best) { order[++count] = $0; best[$0] = seconds }
  seconds < best[$0] { best[$0] = seconds }
  END {
    chosen = order[1]
    for (place = 2; place <= count; place++)
      if (best[order[place]] < 0.9 * best[chosen]) chosen = order[place]
    if (count) print chosen
  }'
