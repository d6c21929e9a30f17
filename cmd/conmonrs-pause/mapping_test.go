package main

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/conmonrs/conmonrs/cmd/internal/podns"
)

func TestParseRanges(t *testing.T) {
	got, err := parseRanges([]string{"0 1000 1", " 1\t100000  65535 ", "4294967294 0 1"})
	want := []syscall.SysProcIDMap{{HostID: 1000, Size: 1}, {ContainerID: 1, HostID: 100000, Size: 65535}, {ContainerID: 1<<32 - 2, Size: 1}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, test := range []struct {
		name, want string
		lines      []string
	}{
		{"empty", "expected 'CONTAINER_ID HOST_ID SIZE'", []string{""}},
		{"four fields", "expected 'CONTAINER_ID HOST_ID SIZE'", []string{"0 0 1 1"}},
		{"sign", "expected all to be u32", []string{"0 +1 1"}},
		{"hexadecimal", "expected all to be u32", []string{"0 0x1 1"}},
		{"33 bits", "expected all to be u32", []string{"0 0 4294967296"}},
		{"no ids", "expected a range of ids", []string{"0 0 0"}},
		{"no id", "expected a range of ids", []string{"4294967295 0 1"}},
		{"beyond", "expected a range of ids", []string{"0 4294967000 1000"}},
		{"same container ids", "overlaps '0 0 10'", []string{"0 0 10", "5 100 1"}},
		{"same host ids", "overlaps '0 0 10'", []string{"0 0 10", "10 9 1"}},
		{"too many", "341 are more", slices.Repeat([]string{"0 0 1"}, 341)},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, err := parseRanges(test.lines); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, %v, want %q", got, err, test.want)
			}
		})
	}
}

func FuzzParseRange(f *testing.F) {
	f.Add("0 100000 65536")
	f.Add("4294967295 4294967295 4294967295")
	f.Fuzz(func(t *testing.T, line string) {
		r, err := parseRange(line)
		if err != nil {
			return
		}
		const last = 1<<32 - 1
		if r.Size <= 0 || r.ContainerID < 0 || r.HostID < 0 || r.ContainerID+r.Size > last || r.HostID+r.Size > last {
			t.Errorf("%q is %+v", line, r)
		}
	})
}

func TestMappingsOfRequest(t *testing.T) {
	one := []string{"0 0 1"}
	for _, test := range []struct {
		name string
		req  podns.Request
		want error
	}{
		{"no user namespace", podns.Request{UIDMappings: []string{"x"}}, nil},
		{"no uids", podns.Request{Unshare: []podns.Kind{podns.User}, GIDMappings: one}, errNoUIDs},
		{"no gids", podns.Request{Unshare: []podns.Kind{podns.User}, UIDMappings: one}, errNoGIDs},
		{"both", podns.Request{Unshare: []podns.Kind{podns.User}, UIDMappings: one, GIDMappings: one}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := parseMappings(&test.req); !errors.Is(err, test.want) {
				t.Errorf("%v, want %v", err, test.want)
			}
		})
	}
	if mapped(mappings{}) || !mapped(mappings{[]syscall.SysProcIDMap{{Size: 1}}, []syscall.SysProcIDMap{{Size: 1}}}) {
		t.Error("root of the user namespace is not told")
	}
}

func TestCheck(t *testing.T) {
	for _, test := range []struct{ name, base, pod, want string }{
		{"no pod", "/b", "", "no pod ID provided"},
		{"dots", "/b", "..", "no name"},
		{"slash", "/b", "a/b", "no name"},
		{"newline", "/b", "a\nb", "no name"},
		{"relative", "b", "p", "not absolute"},
		{"nothing bound", "/proc/self", "pid", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := check(&podns.Request{Base: test.base, PodID: test.pod})
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}
