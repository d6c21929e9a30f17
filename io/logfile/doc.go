// Package logfile writes the output of a container to one file of lines, in
// the format of the CRI or as one JSON object per line, with a size limit and
// reopening.
//
// # Formats
//
// CRI: "<time> <stream> <tag> <bytes>\n", the time in UTC with exactly nine
// digits of fraction, the tag F for a piece that ended with a newline in the
// stream and P for one that did not. The bytes are those of the stream,
// unchanged. Tags say where reads ended; they do not join lines: a stack
// trace of three lines is three F records.
//
// JSON: {"timestamp":<unix seconds>,"pipe":"stdout","message":"<text>"}, with
// "partial":true as a fourth key for a piece that did not end with a newline.
// Only the line terminator is removed. Bytes that are not UTF-8 become U+FFFD,
// one for each byte.
//
// Nothing is kept back between chunks, except that JSON waits for the rest of
// a multi-byte character that was cut by a read.
//
// # Size limit
//
// MaxSize counts every byte of the file, those found at opening included. A
// record that would exceed it goes to a fresh file that takes the place of the
// old one by rename(2), so that a reader of the old file is not disturbed. The
// newest records are never lost, but right after the change the file holds
// only one: what was before is gone, unless Options.Backup keeps one former
// file as "<path>.1". There is no backup by default, because rotation by the
// engine (rename and Reopen) and shippers that watch the directory do not
// expect further files. With MaxSize 0 the size is never touched. With both a
// limit and an engine that rotates, set the limit well above the engine's.
//
// # Failures
//
// A failing log stops nobody. What cannot be written is counted and dropped,
// each later chunk is tried again, and the logger hears of it twice: when the
// trouble begins, and with the totals when it has been over for a second. The
// file is cut back to the end of its last whole record, so that every line in
// it is whole.
//
// The package does not read logs, and does not create directories.
package logfile
