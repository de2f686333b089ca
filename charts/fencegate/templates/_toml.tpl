{{/* TOML by hand: Helm's numbers are floating point, and its own toToml writes 25000 as 25000.0, which is no number of
milliseconds to fencegate. */}}

{{- define "fencegate.toml.value" -}}
{{- if kindIs "map" . -}}
{ {{ $first := true }}{{ range $key, $value := . }}{{ if not $first }}, {{ end }}{{ $first = false }}{{ $key }} = {{ include "fencegate.toml.value" $value }}{{ end }} }
{{- else if kindIs "slice" . -}}
[{{ range $place, $value := . }}{{ if $place }}, {{ end }}{{ include "fencegate.toml.value" $value }}{{ end }}]
{{- else if kindIs "float64" . -}}
{{- if eq (floor .) . }}{{ printf "%.0f" . }}{{ else }}{{ toString . }}{{ end -}}
{{- else if kindIs "string" . -}}
{{ toJson . }}
{{- else -}}
{{ toString . }}
{{- end -}}
{{- end -}}

{{/* A settings file: a section per map, and one per entry of a list of maps. */}}
{{- define "fencegate.toml" -}}
{{- range $section, $keys := . }}
{{- if kindIs "slice" $keys }}
{{- range $entry := $keys }}

[[{{ $section }}]]
{{- range $key, $value := $entry }}
{{ $key }} = {{ include "fencegate.toml.value" $value }}
{{- end }}
{{- end }}
{{- else if $keys }}

[{{ $section }}]
{{- range $key, $value := $keys }}
{{ $key }} = {{ include "fencegate.toml.value" $value }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
