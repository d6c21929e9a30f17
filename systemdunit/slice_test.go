package systemdunit

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestSliceOf(t *testing.T) {
	long := strings.Repeat("x", maxUnitName-len(sliceSuffix))
	for _, test := range []struct{ name, path, want, reason string }{
		{"empty", "", "", ""},
		{"no slice", ":crio:0123", "", ""},
		{"cri-o", "kubepods-besteffort-pod1_2.slice:crio:0123", "kubepods-besteffort-pod1_2.slice", ""},
		{"top level", "machine.slice:libpod:0123", "machine.slice", ""},
		{"root", "-.slice:p:n", "-.slice", ""},
		{"escaped", `a\x2db-c.slice:p:n`, `a\x2db-c.slice`, ""},
		{"at the limit", long + ".slice:p:n", long + ".slice", ""},
		{"no prefix and no name", "a.slice::", "a.slice", ""},
		{"path of cgroupfs", "/kubepods/pod1", "", "form"},
		{"two parts", "a.slice:b", "", "form"},
		{"four parts", "a.slice:b:c:d", "", "form"},
		{"suffix only", ".slice:p:n", "", "empty level"},
		{"no suffix", "a:p:n", "", "does not end in .slice"},
		{"other unit", "a.scope:p:n", "", "does not end in .slice"},
		{"dash in front", "-a.slice:p:n", "", "empty level"},
		{"dash at the end", "a-.slice:p:n", "", "empty level"},
		{"two dashes", "a--b.slice:p:n", "", "empty level"},
		{"path", "a/b.slice:p:n", "", `\x2f`},
		{"space", "a b.slice:p:n", "", `\x20`},
		{"template", "a@b.slice:p:n", "", `\x40`},
		{"not ascii", "ä.slice:p:n", "", `\xc3`},
		{"NUL", "a\x00.slice:p:n", "", `\x00`},
		{"too long", long + "x.slice:p:n", "", "256 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := SliceOf(test.path)
			if test.reason == "" {
				if err != nil || got != test.want {
					t.Errorf("%q, %v", got, err)
				}
				return
			}
			var field *FieldError
			if !errors.As(err, &field) || field.Field != "linux.cgroupsPath" || field.Value != test.path {
				t.Fatalf("%q, %v", got, err)
			}
			if !strings.Contains(err.Error(), "linux.cgroupsPath") || !strings.Contains(field.Reason, test.reason) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestCheckSlice(t *testing.T) {
	if err := CheckSlice("--slice", "system.slice"); err != nil {
		t.Error(err)
	}
	if err := CheckSlice("--slice", ""); err == nil || !strings.Contains(err.Error(), "--slice") {
		t.Errorf("%v", err)
	}
}

func TestScopeName(t *testing.T) {
	for id, want := range map[string]string{
		"0123abcd":               "conmonrs-0123abcd.scope",
		"web_1.a-b:c":            "conmonrs-web_1.a-b:c.scope",
		"a/b c@\\":               `conmonrs-a\x2fb\x20c\x40\x5c.scope`,
		"é":                      `conmonrs-\xc3\xa9.scope`,
		"":                       "",
		strings.Repeat("x", 240): "conmonrs-" + strings.Repeat("x", 240) + ".scope",
		strings.Repeat("x", 241): "",
		strings.Repeat("é", 100): "",
	} {
		got, err := ScopeName(id)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q, %v", id, got, err)
		}
	}
}

func TestAround(t *testing.T) {
	for slice, want := range map[string][]string{
		"a-b-c.slice": {"a-b-c.slice", "a-b.slice", "a.slice", "-.slice"},
		"a.slice":     {"a.slice", "-.slice"},
		"-.slice":     {"-.slice"},
		"":            {"-.slice"},
	} {
		if got := around(slice); !slices.Equal(got, want) {
			t.Errorf("%q: %v", slice, got)
		}
	}
}

func TestDescription(t *testing.T) {
	for text, want := range map[string]string{
		"ns/pod: 3 containers":         "ns/pod: 3 containers",
		"a\nb\x00c\x7f\u2028d":         "a b c  d",
		"end\\":                        "end",
		"end \\\\ ":                    "end",
		"\xff":                         "\ufffd",
		"\\":                           "",
		strings.Repeat("é", 150):       strings.Repeat("é", 100),
		"x" + strings.Repeat("é", 100): "x" + strings.Repeat("é", 99),
	} {
		if got := description(text); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
}

func FuzzSliceOf(f *testing.F) {
	for _, path := range []string{
		"", "a-b.slice:crio:0123", "-.slice:p:n", ":p:n", `a\x2d.slice:p:n`, "a--b.slice:p:n", "/a/b",
	} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		slice, err := SliceOf(path)
		if err != nil || slice == "" {
			if slice != "" {
				t.Errorf("slice %q and %v", slice, err)
			}
			return
		}
		if !strings.HasPrefix(path, slice+":") || CheckSlice("slice", slice) != nil {
			t.Errorf("slice %q", slice)
		}
		parents := around(slice)
		if parents[0] != slice || parents[len(parents)-1] != "-.slice" {
			t.Errorf("slices around it: %v", parents)
		}
		for _, parent := range parents {
			if CheckSlice("slice", parent) != nil {
				t.Errorf("slice around it: %q", parent)
			}
		}
	})
}

func FuzzDescription(f *testing.F) {
	f.Add("ns/pod: 3 containers")
	f.Add("a\\\nb")
	f.Fuzz(func(t *testing.T, text string) {
		got := description(text)
		if len(got) > maxDescription || strings.ContainsAny(got, "\n\r\x00") || strings.HasSuffix(got, "\\") ||
			description(got) != got {
			t.Errorf("%q", got)
		}
	})
}
