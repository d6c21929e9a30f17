package server

import "github.com/conmonrs/conmonrs/rpc/internal/fdslot"

// FDSlots receives descriptors from engines over a socket of its own and keeps them until a create takes them. It is the
// server's end of the descriptor socket, for the service that implements [Service.StartFDSocket]: its methods are Listen,
// Take and Close.
type FDSlots = fdslot.Server

// FDOptions describe an [FDSlots]: what watches descriptors, and who hears of clients that are refused.
type FDOptions = fdslot.Options

// FDPoll registers a descriptor, which stays the caller's. After each call of arm, ready is called once when it can be
// read or has been hung up, not from within arm. After cancel no call of ready begins.
type FDPoll = fdslot.Poll

// Descriptors are some that have been taken out of their slots: Numbers returns them, Close gives them up without waiting.
type Descriptors = fdslot.Descriptors

// SlotError says which slot of which list has no descriptor.
type SlotError = fdslot.SlotError

// NewFDSlots returns an [FDSlots] without a listener. It panics if there is no Poll.
func NewFDSlots(o FDOptions) *FDSlots { return fdslot.New(o) }
