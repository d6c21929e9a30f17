package config

import (
	"strings"
	"unicode/utf8"
)

// UsageError says that the command line or a variable does not make sense.
type UsageError struct {
	// Text is what belongs on standard error: the complaint, a usage line
	// and a hint, with a final newline.
	Text string
}

// UsageExitStatus is the exit status of a process that ends with a UsageError.
const UsageExitStatus = 2

// Error returns the first line of Text.
func (e *UsageError) Error() string {
	line, _, _ := strings.Cut(e.Text, "\n")
	return line
}

// usageError builds the text; details are further lines of the complaint.
func (c *command) usageError(complaint string, details ...string) error {
	var b strings.Builder
	b.WriteString("error: " + complaint + "\n")
	for _, line := range details {
		b.WriteString(line + "\n")
	}
	b.WriteString("\n" + c.usageLine() + "\nFor more information, try '--help'.\n")
	return &UsageError{Text: b.String()}
}

// unexpected is matched by engines: a client takes this text for a sign that the
// monitor is older than the option.
func (c *command) unexpected(arg string) error {
	return c.usageError("unexpected argument '" + clean(arg) + "' found")
}

func (c *command) missingValue(o *option) error {
	var details []string
	switch {
	case o.values != nil:
		details = []string{possible(o.values)}
	case o.kind == flag:
		details = []string{possible(booleans)}
	}
	return c.usageError("a value is required for '"+o.display()+"' but none was supplied", details...)
}

func possible(values []string) string {
	return "  [possible values: " + strings.Join(values, ", ") + "]"
}

func (c *command) usageLine() string {
	return "Usage: " + c.name + " " + c.usage + "\n"
}

// display is the option as it appears in texts.
func (o *option) display() string {
	switch o.kind {
	case flag:
		return "--" + o.long
	case optional:
		return "--" + o.long + " [<" + o.meta + ">]"
	}
	return "--" + o.long + " <" + o.meta + ">"
}

func (c *command) index(name string) int {
	for i := range c.options {
		if o := &c.options[i]; name != "" && (o.long == name || o.alias == name) {
			return i
		}
	}
	return -1
}

func (c *command) indexShort(name byte) int {
	for i := range c.options {
		if name != 0 && c.options[i].short == name {
			return i
		}
	}
	return -1
}

// find returns the option of that long name, which must exist.
func (c *command) find(name string) *option { return &c.options[c.index(name)] }

// clean makes a word of the command line fit for a text.
func clean(s string) string { return strings.ToValidUTF8(s, string(utf8.RuneError)) }

func firstRune(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return s[:n]
}

const projectURL = "https://github.com/conmonrs/conmonrs"

// helpText lists the options, each with its variable, default and values.
func (c *command) helpText() string {
	var b strings.Builder
	b.WriteString(c.about + "\n\n" + c.usageLine())
	if c.subcommands {
		b.WriteString("\nCommands:\n" +
			"  pause  Hold the namespaces of a pod\n" +
			"  help   Print this text or the one of a command\n")
	}
	b.WriteString("\nOptions:\n")
	for i := range c.options {
		if o := &c.options[i]; !o.hidden {
			o.writeHelp(&b)
		}
	}
	b.WriteString("  -h, --help\n          Print help\n\nMore at " + projectURL + "\n")
	return b.String()
}

func (o *option) writeHelp(b *strings.Builder) {
	if o.short != 0 {
		b.WriteString("  -" + string(rune(o.short)) + ", ")
	} else {
		b.WriteString("      ")
	}
	b.WriteString(o.display() + "\n          " + o.help)
	for _, note := range []struct{ name, text string }{
		{"alias", o.alias}, {"env", o.env}, {"default", o.fallback}, {"possible values", strings.Join(o.values, ", ")},
	} {
		if note.text == "" {
			continue
		}
		if note.name == "alias" {
			note.text = "--" + note.text
		}
		b.WriteString(" [" + note.name + ": " + note.text + "]")
	}
	b.WriteString("\n")
}
