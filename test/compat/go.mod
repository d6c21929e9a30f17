// The published client with all that it needs, kept out of the product's go.mod.
module github.com/conmonrs/conmonrs/test/compat

go 1.26.8

replace github.com/conmonrs/conmonrs => ../..

require (
	github.com/conmonrs/conmonrs v0.0.0-00010101000000-000000000000
	github.com/containers/conmon-rs v1.0.1
	github.com/sirupsen/logrus v1.9.4
	go.podman.io/common v0.66.2-0.20260126213724-1e46b0756b39
	go.podman.io/storage v1.61.1-0.20251212224252-b0f86df5a665
)

require (
	capnproto.org/go/capnp/v3 v3.1.0-alpha.2 // indirect
	github.com/blang/semver/v4 v4.0.0 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/colega/zeropool v0.0.0-20230505084239-6fb4a4f75381 // indirect
	github.com/docker/go-units v0.5.0 // indirect
	github.com/go-logr/logr v1.4.3 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/moby/sys/mountinfo v0.7.2 // indirect
	github.com/moby/sys/user v0.4.0 // indirect
	go.opentelemetry.io/auto/sdk v1.2.1 // indirect
	go.opentelemetry.io/otel v1.43.0 // indirect
	go.opentelemetry.io/otel/metric v1.43.0 // indirect
	go.opentelemetry.io/otel/trace v1.43.0 // indirect
	golang.org/x/sync v0.20.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
)
