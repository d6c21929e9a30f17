// Package codec converts between the vocabulary of rpc/conmon and the generated wire types, both directions
// of a type side by side.
//
// Decoding trusts nothing. Absent lists and texts read as empty; enumeration values that are not in the
// schema, texts with a NUL where a path, an argument or an id is meant, and lists of absurd length are
// refused with a *conmon.InvalidError that names the field. What is returned is copied: nothing refers to
// the message afterwards.
package codec

import (
	"strconv"
	"strings"

	"capnproto.org/go/capnp/v3"
	"github.com/conmonrs/conmonrs/rpc/conmon"
	"github.com/conmonrs/conmonrs/rpc/internal/wire"
)

// MaxListLen is the largest number of elements of a list in a request. A list may claim millions
// of elements in a few bytes of message, because elements may be empty. The kernel's limit for arguments and
// environment together is reached earlier with elements of more than some fifty bytes.
const MaxListLen = 1 << 17

// MaxMessage is the largest request in bytes, with everything around it. What the kernel allows as arguments
// and environment of a process fits more than twice.
const MaxMessage = 16 << 20

// decoder reads the fields of one message. The first problem is kept, later reads return zero values.
type decoder struct {
	err error
}

func (d *decoder) fail(field, reason string) {
	if d.err == nil {
		d.err = &conmon.InvalidError{Field: field, Reason: reason}
	}
}

// text reads a text that ends up in a path, an argument vector or an environment.
func (d *decoder) text(field string, get func() (string, error)) string {
	s := d.rawText(field, get)
	if strings.IndexByte(s, 0) >= 0 {
		d.fail(field, "contains a NUL byte")
	}
	return s
}

// rawText reads a text that is only shown or passed on.
func (d *decoder) rawText(field string, get func() (string, error)) string {
	if d.err != nil {
		return ""
	}
	s, err := get()
	if err != nil {
		d.fail(field, "cannot be read: "+err.Error())
	}
	return s
}

// list is what all generated lists have.
type list interface{ Len() int }

// open reads a list pointer and returns its length, which is 0 if anything is wrong with it.
func open[L list](d *decoder, field string, get func() (L, error)) (l L, n int) {
	if d.err != nil {
		return l, 0
	}
	l, err := get()
	if err != nil {
		d.fail(field, "cannot be read: "+err.Error())
		return l, 0
	}
	n = l.Len()
	if n < 0 || n > MaxListLen {
		d.fail(field, "has more than "+strconv.Itoa(MaxListLen)+" elements")
		return l, 0
	}
	return l, n
}

func (d *decoder) texts(field string, get func() (capnp.TextList, error)) []string {
	l, n := open(d, field, get)
	if n == 0 {
		return nil
	}
	out := make([]string, n)
	for i := range out {
		s, err := l.At(i)
		switch {
		case err != nil:
			d.fail(at(field, i), "cannot be read: "+err.Error())
			return nil
		case strings.IndexByte(s, 0) >= 0:
			d.fail(at(field, i), "contains a NUL byte")
			return nil
		}
		out[i] = s
	}
	return out
}

func (d *decoder) uint64s(field string, get func() (capnp.UInt64List, error)) []uint64 {
	l, n := open(d, field, get)
	if n == 0 {
		return nil
	}
	out := make([]uint64, n)
	for i := range out {
		out[i] = l.At(i)
	}
	return out
}

type entries = wire.Conmon_TextTextMapEntry_List

func (d *decoder) env(field string, get func() (entries, error)) []conmon.EnvVar {
	l, n := open(d, field, get)
	if n == 0 {
		return nil
	}
	out := make([]conmon.EnvVar, n)
	for i := range out {
		e := l.At(i)
		out[i].Key = d.text(at(field, i)+".key", e.Key)
		out[i].Value = d.text(at(field, i)+".value", e.Value)
		if d.err == nil && (out[i].Key == "" || strings.IndexByte(out[i].Key, '=') >= 0) {
			d.fail(at(field, i)+".key", "is not the name of a variable")
		}
		if d.err != nil {
			return nil
		}
	}
	return out
}

func (d *decoder) metadata(get func() (entries, error)) map[string]string {
	l, n := open(d, "metadata", get)
	if n == 0 {
		return nil
	}
	out := make(map[string]string)
	for i := range n {
		e := l.At(i)
		key := d.rawText(at("metadata", i)+".key", e.Key)
		value := d.rawText(at("metadata", i)+".value", e.Value)
		if d.err != nil {
			return nil
		}
		out[key] = value
	}
	return out
}

// enum checks an enumeration. known is the number of values in the schema, which are numbered from 0.
func enum[To, From ~uint16](d *decoder, field string, v From, known uint16) To {
	if uint16(v) >= known {
		d.fail(field, "has the unknown value "+strconv.Itoa(int(v)))
		return 0
	}
	return To(v)
}

// How many values the enumerations of the schema have.
const (
	knownLogDrivers     = 3
	knownCgroupManagers = 2
	knownNamespaces     = 5
)

func at(field string, i int) string {
	return field + "[" + strconv.Itoa(i) + "]"
}

// encoder writes the fields of one message and keeps the first error. Empty lists and texts are not
// allocated, as absent ones read as empty.
type encoder struct {
	err error
}

func (e *encoder) text(set func(string) error, v string) {
	if e.err == nil && v != "" {
		e.err = set(v)
	}
}

func (e *encoder) texts(alloc func(int32) (capnp.TextList, error), v []string) {
	if e.err != nil || len(v) == 0 {
		return
	}
	l, err := alloc(int32(len(v)))
	if err != nil {
		e.err = err
		return
	}
	for i, s := range v {
		if err := l.Set(i, s); err != nil {
			e.err = err
			return
		}
	}
}

func (e *encoder) uint64s(alloc func(int32) (capnp.UInt64List, error), v []uint64) {
	if e.err != nil || len(v) == 0 {
		return
	}
	l, err := alloc(int32(len(v)))
	if err != nil {
		e.err = err
		return
	}
	for i, n := range v {
		l.Set(i, n)
	}
}

func (e *encoder) env(alloc func(int32) (entries, error), v []conmon.EnvVar) {
	if e.err != nil || len(v) == 0 {
		return
	}
	l, err := alloc(int32(len(v)))
	if err != nil {
		e.err = err
		return
	}
	for i, entry := range v {
		e.text(l.At(i).SetKey, entry.Key)
		e.text(l.At(i).SetValue, entry.Value)
	}
}

func (e *encoder) metadata(alloc func(int32) (entries, error), v map[string]string) {
	if e.err != nil || len(v) == 0 {
		return
	}
	l, err := alloc(int32(len(v)))
	if err != nil {
		e.err = err
		return
	}
	i := 0
	for key, value := range v {
		e.text(l.At(i).SetKey, key)
		e.text(l.At(i).SetValue, value)
		i++
	}
}
