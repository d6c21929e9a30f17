package container

import "fmt"

// State is where a container is in its life.
type State uint8

// The states of a container.
const (
	// Creating: the runtime is at work; there is no process yet.
	Creating State = iota
	// Running: the process is there, created or started.
	Running
	// Exiting: the process has ended; its exit is being published.
	Exiting
	// Gone: nothing is left but log readers of processes that still hold the pipes.
	Gone
	numStates
)

// Event is what moves a container from one state to the next.
type Event uint8

// The events of a container.
const (
	// Created: the runtime has left a process.
	Created Event = iota
	// CreateFailed: what had been set up has been taken down.
	CreateFailed
	// ProcessExited: the process has been reaped.
	ProcessExited
	// Published: exit files are written, clients told.
	Published
	numEvents
)

// next is the one place that says which event is allowed in which state, and where it leads.
func next(s State, e Event) (State, error) {
	const no = numStates
	table := [numStates][numEvents]State{
		//         Created  CreateFailed ProcessExited Published
		Creating: {Running, Gone, no, no},
		Running:  {no, no, Exiting, no},
		Exiting:  {no, no, no, Gone},
		Gone:     {no, no, no, no},
	}
	if s >= numStates || e >= numEvents || table[s][e] == no {
		return s, fmt.Errorf("internal error: %v while %v", e, s)
	}
	return table[s][e], nil
}

// String returns the state's name.
func (s State) String() string {
	return name([]string{"creating", "running", "exiting", "gone"}, int(s))
}

// String returns the event's name.
func (e Event) String() string {
	return name([]string{"created", "create failed", "process exited", "published"}, int(e))
}

func name(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("unknown (%d)", i)
}
