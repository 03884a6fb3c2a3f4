package command_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/handlers/command"
)

func TestNamedCommand(t *testing.T) {
	show := sh(t, `echo "$DELAYQ_ID:$(cat)"; exit 1`)
	n, err := command.NewNamed(map[string]*command.Handler{"show": show, "true": sh(t, "true")})
	require.NoError(t, err)
	require.NoError(t, n.Handle(t.Context(), job(t, `{"command": "true"}`)))
	for payload, want := range map[string]string{
		`{"command": "show"}`:                         "nightly 7:\n",
		`{"command": "show", "input": "a\nb"}`:        "nightly 7:a\nb\n",
		`{"command": "show", "input": {"month":  3}}`: "nightly 7:{\"month\":  3}\n",
		`{"command": "show", "input": null}`:          "nightly 7:null\n",
	} {
		var failed *command.Error
		require.ErrorAs(t, n.Handle(t.Context(), job(t, payload)), &failed)
		require.Equal(t, want, string(failed.Output), payload)
	}
	for payload, want := range map[string]string{
		``:                               `command: payload of 0 bytes: ends too early; expected {"command": "name", "input": …}`,
		`[]`:                             "of the type array",
		`{"command": "rm"}`:              `there is no command "rm"; expected one of ["show" "true"]`,
		`{"command": "show", "argv": 1}`: `unknown field "argv"`,
		`{"command": "show"} {}`:         "more than one value",
	} {
		err := n.Handle(t.Context(), job(t, payload))
		require.True(t, permanent(err), payload)
		require.ErrorContains(t, err, want)
	}
}

func TestInvalidNamed(t *testing.T) {
	for _, commands := range []map[string]*command.Handler{nil, {"a": nil}} {
		_, err := command.NewNamed(commands)
		require.ErrorIs(t, err, delayq.ErrInvalid)
	}
}
