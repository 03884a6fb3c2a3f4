// Command bench measures delayq against asynq on the same Redis in the same
// run and prints the figures beside their targets. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime/pprof"
	"time"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	cancel()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// redisURL is the environment variable with the Redis to use instead of one of
// our own.
const redisURL = "REDIS_URL"

// config is what the flags say.
type config struct {
	selection
	quick  bool
	json   bool
	plot   string
	cpu    string
	pinger string
}

// parseFlags reads the flags.
func parseFlags(args []string, stderr io.Writer) (config, error) {
	var c config
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.BoolVar(&c.quick, "quick", false, "small numbers and one round, about two minutes: shows that everything works")
	flags.BoolVar(&c.json, "json", false, "print JSON instead of text")
	flags.IntVar(&c.rounds, "rounds", 0, "how often each row is measured (default 3, with -quick 1)")
	flags.StringVar(&c.plot, "plot", "", "draw the curves of the scale row into this `file`, SVG or PNG by its name")
	flags.StringVar(&c.cpu, "cpuprofile", "", "write a CPU profile of this process to this `file`; use it with -rows and -sides")
	flags.StringVar(&c.pinger, "pinger", "", "for the program itself: send PING to the Redis at this `address` until stdin ends")
	rows := flags.String("rows", "", "measure only rows whose ID matches this `regexp`")
	sides := flags.String("sides", "", "measure only sides (delayq, asynq, …) whose name matches this `regexp`")
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	if flags.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	switch {
	case c.rounds < 0:
		return c, fmt.Errorf("-rounds %d: want at least 1", c.rounds)
	case c.rounds == 0 && c.quick:
		c.rounds = 1
	case c.rounds == 0:
		c.rounds = 3
	}
	var rowsErr, sidesErr error
	c.selection.rows, rowsErr = regexp.Compile(*rows)
	c.selection.sides, sidesErr = regexp.Compile(*sides)
	return c, errors.Join(rowsErr, sidesErr)
}

// run is the program.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) (err error) {
	c, err := parseFlags(args, stderr)
	if err != nil {
		return err
	}
	if c.pinger != "" {
		return pinger(ctx, os.Getenv(redisURL), c.pinger, stdin, stdout)
	}
	if len(c.apply(rows())) == 0 {
		return errors.New("no row has been selected")
	}
	if c.cpu != "" {
		stop, err := profile(c.cpu)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	s, err := openStore(ctx, os.Getenv(redisURL))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	info, err := s.info(ctx, "server")
	if err != nil {
		return err
	}
	b := &bench{store: s, sizes: fullSizes(), notes: stderr}
	defer func() { err = errors.Join(err, b.close(context.WithoutCancel(ctx))) }()
	if c.quick {
		b.sizes = quickSizes()
	}
	rep := report{Date: time.Now(), Machine: thisMachine(info["redis_version"]), Rounds: c.rounds, Quick: c.quick}
	rep.Rows, err = b.run(ctx, rows(), c.selection, &progress{out: stderr, terminal: isTerminal(stderr), began: time.Now()})
	if err != nil {
		return err
	}
	if b.postgres != nil {
		rep.Machine.Postgres = b.postgres.version
	}
	if b.node != nil && b.node.err == nil {
		if rep.Machine.BullMQ, err = bullmqVersion(); err != nil {
			return err
		}
	}
	return output(c, rep, stdout)
}

// output prints the report and draws the plot.
func output(c config, rep report, stdout io.Writer) error {
	for _, row := range rep.Rows {
		for _, side := range row.Sides {
			rep.Curves = append(rep.Curves, curvesOf(side)...)
		}
	}
	write := rep.writeText
	if c.json {
		write = rep.writeJSON
	}
	if err := write(stdout); err != nil {
		return err
	}
	switch {
	case c.plot == "":
		return nil
	case len(rep.Curves) == 0:
		return errors.New("-plot: the row with the curves (scale) was not measured")
	default:
		return plotCurves(c.plot, rep.Curves)
	}
}

// profile starts a CPU profile of this process.
func profile(file string) (stop func() error, err error) {
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}

// isTerminal says whether somebody watches w.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
