package embedded

import (
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPipeKeepsOrderAndEnds(t *testing.T) {
	a, b := pipe()
	for _, s := range []string{"one ", "two ", "three"} {
		n, err := a.Write([]byte(s))
		require.NoError(t, err)
		require.Equal(t, len(s), n)
	}
	require.NoError(t, a.Close())

	got, err := io.ReadAll(b) // what was written before the close still arrives
	require.NoError(t, err)
	require.Equal(t, "one two three", string(got))
	_, err = b.Write([]byte("x"))
	require.ErrorIs(t, err, syscall.EPIPE)
	require.NoError(t, b.Close())
	_, err = b.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = b.Write([]byte("x"))
	require.ErrorIs(t, err, net.ErrClosed)
	require.NoError(t, b.Close())
}

func TestPipeCloseWakesReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pipe()
		errs := make(chan error, 2)
		for _, end := range []net.Conn{a, b} {
			go func() {
				_, err := end.Read(make([]byte, 1))
				errs <- err
			}()
		}
		synctest.Wait()
		require.NoError(t, a.Close())
		synctest.Wait()
		require.ElementsMatch(t, []bool{true, false}, []bool{<-errs == io.EOF, <-errs == io.EOF})
	})
}

func TestPipeDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pipe()
		defer func() { _, _ = a.Close(), b.Close() }()
		begin := time.Now()
		buf := make([]byte, 1)

		require.NoError(t, a.SetDeadline(begin.Add(time.Second)))
		_, err := a.Read(buf)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, time.Second, time.Since(begin))
		var timeout net.Error
		require.ErrorAs(t, err, &timeout)
		require.True(t, timeout.Timeout())
		_, err = a.Write(buf)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)

		// A deadline that moves while a read waits applies from then on: later, sooner or not at
		// all.
		for _, wait := range []time.Duration{time.Minute, time.Second, 0} {
			require.NoError(t, a.SetReadDeadline(time.Now().Add(10*time.Second)))
			begin = time.Now()
			done := make(chan error)
			go func() {
				_, err := a.Read(buf)
				done <- err
			}()
			synctest.Wait()
			if wait > 0 {
				require.NoError(t, a.SetReadDeadline(begin.Add(wait)))
				require.ErrorIs(t, <-done, os.ErrDeadlineExceeded)
				require.Equal(t, wait, time.Since(begin))
				continue
			}
			require.NoError(t, a.SetReadDeadline(time.Time{}))
			time.Sleep(time.Hour)
			_, err := b.Write(buf)
			require.NoError(t, err)
			require.NoError(t, <-done)
		}
	})
}
