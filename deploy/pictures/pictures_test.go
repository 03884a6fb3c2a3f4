package main

import (
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A fake Prometheus answers every query with two series, or four buckets.
func TestDraw(t *testing.T) {
	from := time.Unix(1_700_000_000, 0)
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.FormValue("query")
		asked = append(asked, query)
		var list []string
		for i, le := range []string{"0.1", "+Inf", "1", "0.5"} {
			if !strings.Contains(query, "_bucket") && i > 1 {
				break
			}
			list = append(list, fmt.Sprintf(`{"metric":{"topic":"<a&%d>","le":%q},"values":[[%d,"%d"],[%d.5,"NaN"],[%d,"%d"]]}`,
				i, le, from.Unix(), i, from.Unix()+30, from.Unix()+60, 10*i))
		}
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"matrix","result":[%s]}}`, strings.Join(list, ","))
	}))
	defer server.Close()
	out := t.TempDir()
	s := source{address: server.URL, from: from, to: from.Add(time.Minute), rate: time.Minute}
	require.NoError(t, draw(t.Context(), s, "../grafana.json", out))
	files, err := filepath.Glob(out + "/*.svg")
	require.NoError(t, err)
	require.Len(t, files, 6)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NotContains(t, string(text), "NaN")
		require.NotContains(t, string(text), "Inf")
		for from := xml.NewDecoder(strings.NewReader(string(text))); ; {
			_, err := from.Token()
			if err == io.EOF {
				break
			}
			require.NoError(t, err, file)
		}
	}
	require.NotEmpty(t, asked)
	for _, query := range asked {
		require.NotContains(t, query, "$")
	}
}

// An error of Prometheus names the panel and the query.
func TestDrawRefused(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"status":"error","errorType":"bad_data","error":"no such function"}`)
	}))
	defer server.Close()
	s := source{address: server.URL, from: time.Unix(0, 0), to: time.Unix(60, 0)}
	err := draw(t.Context(), s, "../grafana.json", t.TempDir())
	require.ErrorContains(t, err, "Overdue jobs: ")
	require.ErrorContains(t, err, ": no such function")
}

func TestFormat(t *testing.T) {
	for _, c := range []struct {
		value float64
		unit  string
		want  string
	}{
		{0, "s", "0 s"}, {0.0125, "s", "12.5 ms"}, {90, "s", "1.5 min"}, {7200, "s", "2 h"}, {1e-6, "s", "1 µs"},
		{0.125, "percentunit", "12.5%"}, {1234, "short", "1234"}, {12345, "short", "12.3 k"}, {2.5e6, "short", "2.5 M"},
		{0.5, "suffix:/s", "0.5/s"},
	} {
		require.Equal(t, c.want, format(c.value, c.unit))
	}
}

func TestTick(t *testing.T) {
	for most, want := range map[float64]float64{0: 1, 1: 0.5, 4: 1, 5: 2, 10: 5, 0.03: 0.01, 8000: 2000} {
		require.InDelta(t, want, tick(most, "short"), want/1e6, "%v", most)
	}
	for most, want := range map[float64]float64{0.03: 0.01, 20: 5, 250: 120, 3000: 1800, 86400: 6 * 3600} {
		require.InDelta(t, want, tick(most, "s"), want/1e6, "%v", most)
	}
}
