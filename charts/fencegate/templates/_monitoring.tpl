{{/* For the Prometheus operator and for Grafana's sidecar. All of it is optional. */}}

{{- define "fencegate.monitoring" -}}
{{- $fullname := include "fencegate.fullname" . -}}
{{- $labels := include "fencegate.labels" . -}}
{{- with .Values.monitoring.serviceMonitor }}
{{- if .enabled }}
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: {{ $fullname }}
  namespace: {{ $.Release.Namespace }}
  labels:
    {{- $labels | nindent 4 }}
    {{- with .labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  selector:
    matchLabels:
      app.kubernetes.io/name: {{ include "fencegate.name" $ }}
      app.kubernetes.io/instance: {{ $.Release.Name }}
      app.kubernetes.io/component: ops
  endpoints:
    - port: ops
      path: /metrics
      interval: {{ .interval }}
{{- end }}
{{- end }}
{{- with .Values.monitoring.podMonitor }}
{{- if .enabled }}
---
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  name: {{ $fullname }}
  namespace: {{ $.Release.Namespace }}
  labels:
    {{- $labels | nindent 4 }}
    {{- with .labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  selector:
    matchLabels: {{- include "fencegate.gate.selectorLabels" $ | nindent 6 }}
  podMetricsEndpoints:
    - port: ops
      path: /metrics
      interval: {{ .interval }}
{{- end }}
{{- end }}
{{- with .Values.monitoring.rules }}
{{- if .enabled }}
---
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: {{ $fullname }}
  namespace: {{ $.Release.Namespace }}
  labels:
    {{- $labels | nindent 4 }}
    {{- with .labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- /* The file as it stands: Prometheus has templates of its own in it. */}}
  {{- $link := "runbook_url: docs/runbooks.md#" }}
  {{- $.Files.Get "files/alerts.yaml" | replace $link (empty .runbookBase | ternary $link (printf "runbook_url: %s#" .runbookBase)) | nindent 2 }}
{{- end }}
{{- end }}
{{- with .Values.monitoring.dashboard }}
{{- if .enabled }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $fullname }}-dashboard
  namespace: {{ $.Release.Namespace }}
  labels:
    {{- $labels | nindent 4 }}
    {{- with .labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
data:
  {{- /* The same name in every release. Two files with one dashboard in them would have Grafana take in no dashboard of
  its folder any more; of two with one name it sees one. */}}
  fencegate.json: |
    {{- $.Files.Get "files/dashboard.json" | nindent 4 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* For agents, in the pods of a writer; takes a dict of context and matchLabels. It has a switch of its own: how the
gate is scraped says nothing of them. */}}
{{- define "fencegate.agent.podMonitor" -}}
{{- $ask := . -}}
{{- with .context.Values.monitoring.agentPodMonitor -}}
{{- if .enabled -}}
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  name: {{ include "fencegate.fullname" $ask.context }}-agent
  namespace: {{ $ask.context.Release.Namespace }}
  labels:
    {{- include "fencegate.labels" $ask.context | nindent 4 }}
    {{- with .labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  selector:
    matchLabels: {{- toYaml $ask.matchLabels | nindent 6 }}
  podMetricsEndpoints:
    - port: agent-status
      path: /metrics
      interval: {{ .interval }}
{{- end -}}
{{- end -}}
{{- end -}}
