{{/* Names and labels. Each named template of this chart takes the chart's own context: `.` here, and in a chart that
depends on this one `.Subcharts.fencegate`. */}}

{{- define "fencegate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Short enough that every suffix fits behind it. */}}
{{- define "fencegate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "fencegate.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "fencegate.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "fencegate.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository (default $.Chart.AppVersion .tag) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "fencegate.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/name: {{ include "fencegate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* What a gate's pod is found by. A pod that includes the gate's container has these among its labels. */}}
{{- define "fencegate.gate.selectorLabels" -}}
app.kubernetes.io/name: {{ include "fencegate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: gate
{{- end -}}

{{/* Without the chart's version: a new chart alone is no reason to stop a store. */}}
{{- define "fencegate.gate.podLabels" -}}
{{- include "fencegate.gate.selectorLabels" . }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- with .Values.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "fencegate.serviceAccountName" -}}
{{- with .Values.serviceAccount -}}
{{- default (ternary (include "fencegate.fullname" $) "default" .create) .name -}}
{{- end -}}
{{- end -}}

{{- define "fencegate.claimName" -}}
{{- default (printf "%s-table" (include "fencegate.fullname" .)) .Values.table.claim.existing -}}
{{- end -}}
