package oci

import (
	"encoding/json"
	"testing"
)

func TestLookup(t *testing.T) {
	for _, c := range []struct {
		object string
		path   []string
		want   string
	}{
		{`{"status":"running"}`, []string{"status"}, "running"},
		{"\n{ \"id\" : \"x\",\"pid\":12 , \"a\":[1,{\"status\":\"no\"},[]],\t\"status\" : \"paused\" }", []string{"status"}, "paused"},
		{`{"a":{"status":"inner"},"b":{},"c":true,"d":null,"e":-1.5e3,"status":"outer"}`, []string{"status"}, "outer"},
		{`{"annotations":{"x":"y","org.opencontainers.image.stopSignal":"SIGQUIT"}}`, []string{"annotations", StopSignalAnnotation}, "SIGQUIT"},
		{`{"annotations":{}}`, []string{"annotations", "x"}, ""},
		{`{"annotations":null}`, []string{"annotations", "x"}, ""},
		{`{"status":7}`, []string{"status"}, ""},
		{`{"k\"\u0041":"\ud83d\ude00\n\\\/"}`, []string{`k"A`}, "😀\n\\/"},
		{`{"a\\":"\"}","status":"\\"}`, []string{"status"}, `\`},
		{`{"status":"\x"}`, []string{"status"}, ""},
		{`{"status":"\`, []string{"status"}, ""},
		{``, []string{"x"}, ""},
		{`{"a"`, []string{"x"}, ""},
		{`[1]`, []string{"x"}, ""},
	} {
		if got := Lookup([]byte(c.object), c.path...); got != c.want {
			t.Errorf("%s %q: got %q, want %q", c.object, c.path, got, c.want)
		}
	}
}

// Garbage stays in the memory of an idle pod, and configurations are large.
func TestLookupAllocates(t *testing.T) {
	object := []byte(`{"process":{"env":["PATH=/bin","A=\"b\""]},"annotations":{"a":"{\"b\":1}","name":"web"}}`)
	n := testing.AllocsPerRun(100, func() {
		if Lookup(object, "annotations", "name") != "web" {
			t.Error("not found")
		}
	})
	if n > 1 {
		t.Errorf("%v allocations, want that of the result", n)
	}
}

// FuzzLookup compares with encoding/json where that accepts the text.
func FuzzLookup(f *testing.F) {
	f.Add([]byte(`{"a":[{"b":"c"}],"status":"x\u00e4"}`))
	f.Add([]byte(`{"status":"\ud800"}`))
	f.Add([]byte(`{"x":"\uZZZZ`))
	f.Fuzz(func(t *testing.T, b []byte) {
		got := Lookup(b, "status")
		var members map[string]json.RawMessage
		if json.Unmarshal(b, &members) != nil || len(members) != 1 {
			return // no JSON, or more members, of which one may be there twice
		}
		var want string
		if json.Unmarshal(members["status"], &want) == nil && json.Valid(b) && got != want && !hasInvalidUTF8(b) {
			t.Errorf("%q: got %q, want %q", b, got, want)
		}
	})
}

// hasInvalidUTF8 is true for texts in which encoding/json replaces bytes that Lookup keeps.
func hasInvalidUTF8(b []byte) bool {
	for _, r := range string(b) {
		if r == '\uFFFD' {
			return true
		}
	}
	return false
}
