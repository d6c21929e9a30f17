package notify

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// R105, R109: the keys of conmon pass, alone and together; all else does not.
func TestFilter(t *testing.T) {
	long := "STATUS=" + strings.Repeat("x", 4096)
	for name, c := range map[string]struct {
		message string
		cut     bool
		want    string
	}{
		"ready":                  {"READY=1", false, "READY=1"},
		"ready, newline":         {"READY=1\n", false, "READY=1"},
		"ready, NUL":             {"READY=1\x00", false, "READY=1"},
		"each":                   {"READY=1\nRELOADING=1\nSTOPPING=1\nWATCHDOG=1", false, "READY=1\nRELOADING=1\nSTOPPING=1\nWATCHDOG=1"},
		"trigger":                {"WATCHDOG=trigger", false, "WATCHDOG=trigger"},
		"with values":            {"STATUS=a=b, c\nERRNO=2\nBUSERROR=org.x.Y\nMONOTONIC_USEC=17\n", false, "STATUS=a=b, c\nERRNO=2\nBUSERROR=org.x.Y\nMONOTONIC_USEC=17"},
		"long status":            {long, false, long},
		"empty status":           {"STATUS=", false, "STATUS="},
		"order is kept":          {"STATUS=b\nREADY=1\nSTATUS=a", false, "STATUS=b\nREADY=1\nSTATUS=a"},
		"carriage returns":       {"READY=1\r\n\r\nSTATUS=x\rSTOPPING=1\r", false, "READY=1\nSTATUS=x\nSTOPPING=1"},
		"any bytes":              {"STATUS=\xff\xfe\x01\x7f\u2028", false, "STATUS=\xff\xfe\x01\x7f\u2028"},
		"behind a NUL":           {"STATUS=a\x00\nREADY=1", false, "STATUS=a"},
		"between":                {"MAINPID=1\nREADY=1\nFDSTORE=1\n\nSTATUS=x\nFDNAME=y", false, "READY=1\nSTATUS=x"},
		"nothing":                {"", false, ""},
		"only newlines":          {"\n\r\n", false, ""},
		"main process":           {"MAINPID=4711\nMAINPIDFDID=3\nMAINPIDFD=1", false, ""},
		"descriptors":            {"FDSTORE=1\nFDNAME=a\nFDPOLL=0\nFDSTOREREMOVE=1", false, ""},
		"of the unit":            {"NOTIFYACCESS=all\nEXTEND_TIMEOUT_USEC=1\nWATCHDOG_USEC=1\nRESTART_RESET=1", false, ""},
		"barrier":                {"BARRIER=1", false, ""},
		"other values":           {"READY=0\nREADY=11\nREADY=\nREADY\nSTOPPING=2\nWATCHDOG=2\nWATCHDOG=triggered", false, ""},
		"other keys":             {"XREADY=1\n READY=1\nready=1\nSTATUS\nSTATUSX=1\nVARLINKERROR=x", false, ""},
		"cut in the last line":   {"READY=1\nSTATUS=xxx", true, "READY=1"},
		"cut in the only line":   {"WATCHDOG=1", true, ""},
		"cut behind a NUL":       {"WATCHDOG=1\x00xx", true, "WATCHDOG=1"},
		"cut behind a line feed": {"WATCHDOG=1\n", true, "WATCHDOG=1"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := string(filter([]byte(c.message), c.cut)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func FuzzFilter(f *testing.F) {
	f.Add([]byte("READY=1\nSTATUS=x\r\nMAINPID=1\x00STOPPING=1"), false)
	f.Add([]byte("STATUS=\xff\nWATCHDOG=trigger"), true)
	f.Fuzz(func(t *testing.T, message []byte, cut bool) {
		want := slowFilter(string(message), cut)
		got := filter(bytes.Clone(message), cut)
		if string(got) != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if again := filter(bytes.Clone(got), false); !bytes.Equal(again, got) {
			t.Errorf("%q is filtered to %q", got, again)
		}
	})
}

// slowFilter says the same in other words.
func slowFilter(message string, cut bool) string {
	text, _, ended := strings.Cut(message, "\x00")
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	if cut && !ended && len(lines) > 0 && !strings.HasSuffix(text, "\n") && !strings.HasSuffix(text, "\r") {
		lines = lines[:len(lines)-1]
	}
	lines = slices.DeleteFunc(lines, func(line string) bool {
		key, value, _ := strings.Cut(line, "=")
		switch key {
		case "READY", "RELOADING", "STOPPING":
			return value != "1"
		case "WATCHDOG":
			return value != "1" && value != "trigger"
		case "STATUS", "ERRNO", "BUSERROR", "MONOTONIC_USEC":
			return !strings.Contains(line, "=")
		}
		return true
	})
	return strings.Join(lines, "\n")
}
