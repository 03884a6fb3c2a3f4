// Package command has a handler for delayq that runs a command for each job. It needs Linux.
//
//	backup, err := command.New([]string{"/usr/local/bin/backup", "--all"},
//		command.Dir("/srv/backup"), command.Env("TARGET=s3://backup"))
//	server.Handle("backup", backup, delayq.Defaults(delayq.Timeout(time.Hour)))
//
// The arguments are from the configuration alone. The payload of the job goes to the standard
// input, so whoever can enqueue chooses what a command reads and never what it is. There is no
// shell. A shell script or a Python program is a command like any other:
//
//	report, err := command.New([]string{"/usr/bin/python3", "/srv/report.py"})
//
// A handler runs one command. With [NewNamed] the payload names one of several.
//
// The environment of the server is not inherited. A command has these variables, and those of
// [Env]:
//
//	DELAYQ_TOPIC    the topic of the job
//	DELAYQ_ID       its ID
//	DELAYQ_ATTEMPT  the number of the run, from 1
//	DELAYQ_DUE      its due time, such as 2026-03-01T12:00:00.5Z
//	PATH            /usr/local/bin:/usr/bin:/bin, unless Env has another one
//
// The exit status decides, as sysexits.h has it:
//
//	0           the job is done
//	75          the job is retried after its backoff, or buried if no retry is left (EX_TEMPFAIL)
//	64          the job is buried (EX_USAGE)
//	any other   as for 75; so is the end by a signal
//
// # The end of a command
//
// A command runs in a process group of its own. When the context of the job is cancelled, because
// its [delayq.Timeout] is over, the server stops, or somebody cancels it, the group gets SIGTERM,
// and SIGKILL after [Grace]. A command that then exits with 0 has done its job. When a command has
// exited, the rest of its group gets SIGKILL: what it leaves in the background does not outlive it.
// A process that has left the group, for example by setsid, is not found, and neither is one that
// the kernel does not let the server signal, for example after sudo. If the server itself is killed
// by SIGKILL, its commands run on, and their jobs run again elsewhere when their leases are over.
//
// # Output
//
// Standard output and standard error are read to the end. The last 4 KiB are attached to the run
// ([delayq.Job.SetOutput]), and are in the [Error] of a run that failed. The last 768 bytes are in
// its text, and so in the errors of the job ([delayq.Client.Get]), which keep 1 KiB. A command that
// prints secrets prints them there.
package command
