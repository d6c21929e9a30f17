// Package compat runs our monitor under the client library that engines use today, published by the project that defined the
// interface, pinned in go.mod and not modified. What its own suite expects of a server is expected here, with the same
// patience: where that suite looks once, these tests look once.
package compat
