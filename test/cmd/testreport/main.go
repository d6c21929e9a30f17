// Testreport turns the event stream of "go test -json" and "go tool test2json" into
// what a person reads: a line for each package, the output of what failed, every skip
// with its reason, and one closing line with the numbers.
//
//	go test -json ./... | testreport -dir DIR -name unit
//	testreport -dir DIR -name lint -failed     record a step that is no test run
//	testreport -dir DIR -total test            add up what was recorded in DIR
//
// With CI=true a skip that the file of -allow-skips does not list is a failure: on a
// machine that is set up for the tests, a skip means that something went untested.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("testreport", flag.ContinueOnError)
	flags.SetOutput(stderr)
	dir := flags.String("dir", "", "keep this run's result in `DIR`, for -total")
	name := flags.String("name", "tests", "`NAME` of the run")
	failed := flags.Bool("failed", false, "record NAME as one failure, without reading events")
	total := flags.String("total", "", "add up the results in DIR under `NAME`")
	allowFile := flags.String("allow-skips", "", "`FILE` of skips that are no failure with CI=true")
	if flags.Parse(args) != nil {
		return 2
	}
	res, err := produce(*dir, *name, *total, *failed, stdin, stdout)
	if err != nil {
		fmt.Fprintln(stderr, "testreport:", err)
		return 1
	}
	allowed, err := readAllowedSkips(*allowFile)
	if err != nil {
		fmt.Fprintln(stderr, "testreport:", err)
		return 1
	}
	strict := os.Getenv("CI") == "true"
	refused := res.printSkips(stdout, allowed, strict)
	title := *name
	if *total != "" {
		title = *total
		res.printFailures(stdout)
	}
	fmt.Fprintf(stdout, "%s: %d passed, %d failed, %d skipped\n", title, res.Passed, len(res.Failed), len(res.Skipped))
	if len(res.Failed) > 0 || refused > 0 || (*total != "" && res.Passed == 0) {
		return 1
	}
	return 0
}

// produce reads a run's events, or what earlier runs left in dir, into one result.
func produce(dir, name, total string, failed bool, stdin io.Reader, stdout io.Writer) (*result, error) {
	if total != "" {
		return readResults(dir)
	}
	res := &result{Name: name}
	if failed {
		res.Failed = []string{name}
	} else if err := readEvents(stdin, stdout, res); err != nil {
		return nil, err
	}
	if dir == "" {
		return res, nil
	}
	return res, res.write(dir)
}
