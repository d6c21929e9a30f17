#!/bin/bash
# Regenerates rpc/internal/wire from rpc/conmon.capnp. Needs capnp (Debian: capnproto) and go, installs
# nothing, and leaves go.mod and go.sum alone. The output depends on the schema and on the version of
# capnproto.org/go/capnp/v3 in go.mod only, so CI can run it and compare.
set -eu

cd "$(dirname "$0")"

if ! command -v capnp >/dev/null; then
	echo "generate.sh: capnp not found (package capnproto)" >&2
	exit 1
fi

module=$(go list -m -f '{{.Dir}}' capnproto.org/go/capnp/v3)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

go build -o "$work/capnpc-go" capnproto.org/go/capnp/v3/capnpc-go

# The request is piped instead of using "capnp compile -o": that is the only way to give the plugin flags.
# Schemas and String methods would link reflection into the daemon for nothing.
capnp compile -I"$module/std" -o- conmon.capnp >"$work/request"
(cd "$work" && ./capnpc-go -schemas=false -structstrings=false <request)
mkdir -p internal/wire
mv "$work/conmon.capnp.go" internal/wire/conmon.capnp.go
