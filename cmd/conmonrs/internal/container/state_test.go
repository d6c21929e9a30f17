package container

import "testing"

func TestEveryCellOfTheStateTable(t *testing.T) {
	allowed := map[State]map[Event]State{
		Creating: {Created: Running, CreateFailed: Gone},
		Running:  {ProcessExited: Exiting},
		Exiting:  {Published: Gone},
	}
	for s := Creating; s <= numStates; s++ {
		for e := Created; e <= numEvents; e++ {
			want, ok := allowed[s][e]
			if !ok {
				want = s
			}
			got, err := next(s, e)
			if got != want || (err == nil) != ok {
				t.Errorf("%v, %v: %v, %v; want %v", s, e, got, err, want)
			}
		}
	}
}
