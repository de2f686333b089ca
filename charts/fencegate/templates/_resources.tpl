{{/* All that belongs to a gate but the pod that it runs in. */}}
{{- define "fencegate.gate.resources" -}}
{{- include "fencegate.validate" . -}}
{{- range list "fencegate.gate.serviceAccount" "fencegate.gate.rbac" "fencegate.gate.config" "fencegate.gate.services" "fencegate.gate.networkPolicy" "fencegate.gate.podDisruptionBudget" "fencegate.monitoring" }}
{{- with include . $ }}
---
{{ . }}
{{- end }}
{{- end }}
{{- end -}}
