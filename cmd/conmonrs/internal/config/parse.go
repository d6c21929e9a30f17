package config

import (
	"slices"
	"strings"
)

// Parse reads the command line without the program's own name (os.Args[1:]) and
// the environment (os.Environ()). An option on the command line wins over its
// variable, which wins over the default. Every error is a *UsageError. Nothing is
// checked that needs the file system: see Validate.
func Parse(args, environ []string) (*Config, error) {
	c := newConfig()
	var version versionRequest
	top := newParser(mainCommand(&version), c)
	rest, err := top.options(args)
	if err != nil {
		return nil, err
	}
	if !top.help {
		if err := c.subcommand(top.cmd, rest, environ); err != nil {
			return nil, err
		}
	}
	switch {
	case top.help:
		c.Command, c.HelpText = Help, top.cmd.helpText()
		return c, nil
	case c.Command == Help:
		return c, nil
	}
	if err := top.environment(environ); err != nil {
		return nil, err
	}
	switch { // both win over a subcommand, the text form wins over JSON
	case version.text != "":
		c.Command, c.VersionFull = Version, version.text == "full"
	case version.json != "":
		c.Command, c.VersionFull = VersionJSON, version.json == "full"
	}
	return c, nil
}

// subcommand reads the words after the top-level options.
func (c *Config) subcommand(top *command, words, environ []string) error {
	if len(words) == 0 {
		return nil
	}
	switch words[0] {
	case "pause":
		return c.pause(words[1:], environ)
	case "help":
		return c.helpCommand(top, words[1:])
	case "--": // ends the options, and there is nothing else to give
		if len(words) == 1 {
			return nil
		}
		return top.unexpected(words[1])
	}
	return top.usageError("unrecognized subcommand '" + clean(words[0]) + "'")
}

func (c *Config) helpCommand(top *command, words []string) error {
	shown := top
	for i, word := range words {
		switch {
		case i == 0 && word == "pause":
			shown = pauseCommand()
		case i == 0 && word == "help":
		default:
			return top.usageError("unrecognized subcommand '" + clean(word) + "'")
		}
	}
	c.Command, c.HelpText = Help, shown.helpText()
	return nil
}

func (c *Config) pause(words, environ []string) error {
	p := newParser(pauseCommand(), c)
	rest, err := p.options(words)
	if err != nil {
		return err
	}
	if p.help {
		c.Command, c.HelpText = Help, p.cmd.helpText()
		return nil
	}
	if len(rest) > 0 && rest[0] == "--" {
		rest = rest[1:]
	}
	if len(rest) > 0 {
		return p.cmd.unexpected(rest[0])
	}
	if err := p.environment(environ); err != nil {
		return err
	}
	c.Command = Pause
	var missing []string
	for _, need := range []struct {
		name   string
		absent bool
	}{
		{"pod-id", c.Pause.PodID == ""},
		{"uid-mappings", c.Pause.User && len(c.Pause.UIDMappings) == 0},
		{"gid-mappings", c.Pause.User && len(c.Pause.GIDMappings) == 0},
	} {
		if need.absent {
			missing = append(missing, "  "+p.cmd.find(need.name).display())
		}
	}
	if missing != nil {
		return p.cmd.usageError("the following required arguments were not provided:", missing...)
	}
	return nil
}

// parser applies one command's table.
type parser struct {
	cmd  *command
	conf *Config
	seen []bool // by index of the option: given on the command line
	help bool   // help was asked for; reading stopped there
}

func newParser(cmd *command, conf *Config) *parser {
	return &parser{cmd: cmd, conf: conf, seen: make([]bool, len(cmd.options))}
}

// options reads args up to the first word that is neither an option nor a value
// of one, and returns from that word on. It stops at a request for help.
func (p *parser) options(args []string) (rest []string, err error) {
	for len(args) > 0 && !p.help {
		arg := args[0]
		switch {
		case arg == "--" || len(arg) < 2 || arg[0] != '-':
			return args, nil
		case arg[1] == '-':
			args, err = p.long(arg[2:], args[1:])
		default:
			args, err = p.shorts(arg[1:], args[1:])
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// long handles --name and --name=value; next are the words after it.
func (p *parser) long(arg string, next []string) ([]string, error) {
	name, value, attached := strings.Cut(arg, "=")
	if name == "help" && !attached {
		p.help = true
		return next, nil
	}
	i := p.cmd.index(name)
	if i < 0 {
		return nil, p.cmd.unexpected("--" + name)
	}
	if p.cmd.options[i].kind == flag {
		if attached {
			return nil, p.cmd.usageError("unexpected value '" + clean(value) + "' for '--" + name + "' found; no more were expected")
		}
		return next, p.given(i, "true")
	}
	if attached {
		return next, p.given(i, value)
	}
	return p.separate(i, next)
}

// shorts handles -n, -nvalue, -n=value and flags written together.
func (p *parser) shorts(arg string, next []string) ([]string, error) {
	for j := 0; j < len(arg); j++ {
		if arg[j] == 'h' {
			p.help = true
			return next, nil
		}
		i := p.cmd.indexShort(arg[j])
		if i < 0 {
			return nil, p.cmd.unexpected("-" + firstRune(arg[j:]))
		}
		if p.cmd.options[i].kind != flag {
			if j+1 < len(arg) {
				return next, p.given(i, strings.TrimPrefix(arg[j+1:], "="))
			}
			return p.separate(i, next)
		}
		if err := p.given(i, "true"); err != nil {
			return nil, err
		}
	}
	return next, nil
}

// separate takes the value of option i from the next word, if it can be one.
func (p *parser) separate(i int, next []string) ([]string, error) {
	isValue := len(next) > 0 && (next[0] == "-" || !strings.HasPrefix(next[0], "-"))
	if isValue {
		return next[1:], p.given(i, next[0])
	}
	if o := &p.cmd.options[i]; o.kind == optional {
		return next, p.given(i, o.bare)
	}
	return next, p.cmd.missingValue(&p.cmd.options[i])
}

// given stores what the command line says about option i.
func (p *parser) given(i int, value string) error {
	o := &p.cmd.options[i]
	if p.seen[i] && o.kind != list && o.kind != ignored {
		return p.cmd.usageError("the argument '" + o.display() + "' cannot be used multiple times")
	}
	p.seen[i] = true
	return p.store(o, value)
}

// store checks a value and puts it into the Config.
func (p *parser) store(o *option, value string) error {
	allowed := o.values
	if o.kind == flag {
		allowed = booleans
	}
	switch {
	case value == "" && !o.empty:
		return p.cmd.missingValue(o)
	case allowed != nil && !slices.Contains(allowed, value):
		return p.cmd.usageError("invalid value '"+clean(value)+"' for '"+o.display()+"'", possible(allowed))
	case o.set == nil:
		return nil
	}
	if err := o.set(p.conf, value); err != nil {
		return p.cmd.usageError("invalid value '" + clean(value) + "' for '" + o.display() + "': " + err.Error())
	}
	return nil
}

// environment fills in the options that the command line did not give.
func (p *parser) environment(environ []string) error {
	for i := range p.cmd.options {
		o := &p.cmd.options[i]
		if o.env == "" || p.seen[i] {
			continue
		}
		if value, ok := lookup(environ, o.env); ok {
			if err := p.store(o, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// lookup finds a variable as getenv(3) does: the first entry counts.
func lookup(environ []string, name string) (string, bool) {
	for _, entry := range environ {
		if key, value, ok := strings.Cut(entry, "="); ok && key == name {
			return value, true
		}
	}
	return "", false
}
