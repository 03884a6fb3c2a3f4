package deploy_test

import (
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each panel has a place of its own, a unit, and a description; each variable is used.
func TestBoardIsSound(t *testing.T) {
	b := grafana(t)
	ids, taken := map[int]bool{}, map[[2]int]string{}
	var rows, exprs []string
	for _, p := range b.Panels {
		require.False(t, ids[p.ID], "two panels have the ID %d", p.ID)
		ids[p.ID] = true
		require.Positive(t, p.ID)
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				require.Empty(t, taken[at], "%s overlaps", p.Title)
				taken[at] = p.Title
			}
		}
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		require.NotEmpty(t, p.Description, p.Title)
		require.NotEmpty(t, p.FieldConfig.Defaults.Unit, p.Title)
		require.Equal(t, "${datasource}", p.Datasource.UID, p.Title)
		refs := map[string]bool{}
		for _, target := range p.Targets {
			require.Equal(t, "${datasource}", target.Datasource.UID, p.Title)
			require.False(t, refs[target.RefID], p.Title)
			refs[target.RefID] = true
			exprs = append(exprs, target.Expr)
			if p.Type == "timeseries" {
				require.NotEmpty(t, target.LegendFormat, p.Title)
			}
		}
		require.NotEmpty(t, refs, p.Title)
	}
	require.Equal(t, []string{"Now", "Flow", "Time", "Ahead", "Trouble", "Outbox"}, rows)
	var variables []string
	for _, v := range b.Templating.List {
		variables = append(variables, v.Name)
		if v.Type == "query" {
			require.Contains(t, strings.Join(exprs, "\n"), "$"+v.Name)
		}
	}
	require.Equal(t, []string{"datasource", "prefix", "topic", "outbox"}, variables)
	require.Len(t, b.Annotations.List, 2)
}

// The pictures in the documents show the panels of the board.
func TestPicturesShowTheBoard(t *testing.T) {
	titles := map[string][]string{}
	var row string
	for _, p := range grafana(t).Panels {
		if p.Type == "row" {
			row = strings.ToLower(p.Title)
		} else {
			titles[row] = append(titles[row], p.Title)
		}
	}
	total := int64(0)
	for row, titles := range titles {
		path := filepath.Join("../docs/board", row+".svg")
		require.Contains(t, file(t, howto), "](../board/"+row+".svg)")
		info, err := os.Stat(path)
		require.NoError(t, err)
		total += info.Size()
		var shown []string
		from := xml.NewDecoder(strings.NewReader(file(t, path)))
		bold := false
		for {
			token, err := from.Token()
			if err == io.EOF {
				break
			}
			require.NoError(t, err, path)
			switch token := token.(type) {
			case xml.StartElement:
				bold = false
				for _, a := range token.Attr {
					bold = bold || a.Name.Local == "font-weight"
				}
			case xml.CharData:
				if bold {
					shown = append(shown, string(token))
				}
				require.NotEqual(t, "no data", string(token), path)
			case xml.EndElement:
				bold = false
			}
		}
		require.Equal(t, titles, shown, path)
	}
	require.Less(t, total, int64(300_000))
}
