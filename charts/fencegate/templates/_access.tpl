{{/* Who may reach what: the service account and its roles, the Services, the NetworkPolicy. */}}

{{- define "fencegate.gate.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "fencegate.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
  labels: {{- include "fencegate.labels" . | nindent 4 }}
  {{- with .Values.serviceAccount.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- end -}}
{{- end -}}

{{/* A Role and its binding in each namespace; takes a dict of context, settings, others (namespaces), name,
rules (the template that has them) and account. */}}
{{- define "fencegate.leaseRoles" -}}
{{- $ask := . -}}
{{- range include "fencegate.leaseNamespaces" (list .settings .others) | fromJsonArray }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $ask.name }}
  namespace: {{ . }}
  labels: {{- include "fencegate.labels" $ask.context | nindent 4 }}
rules: {{- include $ask.rules (dict "namespace" . "settings" $ask.settings "others" $ask.others) | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $ask.name }}
  namespace: {{ . }}
  labels: {{- include "fencegate.labels" $ask.context | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $ask.name }}
subjects:
  - kind: ServiceAccount
    name: {{ $ask.account }}
    namespace: {{ $ask.context.Release.Namespace }}
{{- end }}
{{- end -}}

{{/* The gate finds out by itself which Leases there are. */}}
{{- define "fencegate.gate.leaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, list, watch]
{{- end -}}

{{/* The agent changes no Leases but those of its routes, where their names are known; a right to create cannot be
limited to a name. Takes a dict of namespace, settings and others. */}}
{{- define "fencegate.agent.leaseRules" -}}
{{- $names := list -}}
{{- range .settings.route -}}
{{- with .kubernetes -}}
{{- if or (eq .namespace $.namespace) (and (contains "{" .namespace) (has $.namespace $.others)) -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $known := and $names (not (contains "{" (join "" $names))) -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, update]
  {{- if $known }}
  resourceNames: {{ $names | uniq | sortAlpha | toJson }}
  {{- end }}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
{{- end -}}

{{/* The name has the release's namespace in it: two releases of one name may read Leases of a third namespace. */}}
{{- define "fencegate.gate.rbac" -}}
{{- if .Values.rbac.create -}}
{{- $name := printf "%s-%s-read-leases" .Release.Namespace (include "fencegate.fullname" .) -}}
{{- $others := dig "kubernetes" "namespaces" list .Values.gate.config -}}
{{- include "fencegate.leaseRoles" (dict "context" . "settings" (include "fencegate.gate.settings" . | fromJson) "others" $others "name" $name "rules" "fencegate.gate.leaseRules" "account" (include "fencegate.serviceAccountName" .)) -}}
{{- include "fencegate.gate.reviewRole" . -}}
{{- end -}}
{{- end -}}

{{/* For callers that show tokens of service accounts: the gate asks the API server whose they are. A TokenReview is in no
namespace, so this is a ClusterRole. It may ask that and nothing else. */}}
{{- define "fencegate.gate.reviewRole" -}}
{{- if and .Values.api.expose (include "fencegate.gate.settings" . | fromJson | include "fencegate.reviewsTokens") -}}
{{- $name := printf "%s-%s-review-tokens" .Release.Namespace (include "fencegate.fullname" .) }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ $name }}
  labels: {{- include "fencegate.labels" . | nindent 4 }}
rules:
  - apiGroups: [authentication.k8s.io]
    resources: [tokenreviews]
    verbs: [create]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $name }}
  labels: {{- include "fencegate.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ include "fencegate.serviceAccountName" . }}
    namespace: {{ .Release.Namespace }}
{{- end -}}
{{- end -}}

{{- define "fencegate.agent.rbac" -}}
{{- if .Values.rbac.create -}}
{{- $name := printf "%s-%s-take-leases" .Release.Namespace (include "fencegate.fullname" .) -}}
{{- $others := dig "kubernetes" "namespaces" list .Values.agent.config -}}
{{- include "fencegate.leaseRoles" (dict "context" . "settings" (include "fencegate.agent.settings" . | fromJson) "others" $others "name" $name "rules" "fencegate.agent.leaseRules" "account" .Values.agent.serviceAccountName) -}}
{{- end -}}
{{- end -}}

{{/* One Service for clients; one without an address of its own for the StatefulSet's names and for Prometheus; and one for
callers of the api, apart from the first, which may lead out of the cluster. */}}
{{- define "fencegate.gate.services" -}}
{{- $config := include "fencegate.gate.settings" . | fromJson -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "fencegate.fullname" . }}
  namespace: {{ .Release.Namespace }}
  labels: {{- include "fencegate.labels" . | nindent 4 }}
  {{- with .Values.service.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ .Values.service.type }}
  selector: {{- include "fencegate.gate.selectorLabels" . | nindent 4 }}
  ports:
    - name: gate
      port: {{ .Values.service.port }}
      {{- /* By number: endpoints found no named port of a sidecar before 1.33. */}}
      targetPort: {{ include "fencegate.port" $config.gate.listen }}
      protocol: TCP
---
apiVersion: v1
kind: Service
metadata:
  name: {{ include "fencegate.fullname" . }}-pods
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "fencegate.labels" . | nindent 4 }}
    app.kubernetes.io/component: ops
spec:
  clusterIP: None
  selector: {{- include "fencegate.gate.selectorLabels" . | nindent 4 }}
  ports:
    - name: ops
      port: {{ include "fencegate.port" $config.ops.listen }}
      targetPort: {{ include "fencegate.port" $config.ops.listen }}
      protocol: TCP
{{- if .Values.api.expose }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ include "fencegate.fullname" . }}-api
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "fencegate.labels" . | nindent 4 }}
    app.kubernetes.io/component: api
  {{- with .Values.api.service.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ .Values.api.service.type }}
  # Holders renew and release their leases while the gate drains, and while the store is not ready.
  publishNotReadyAddresses: true
  selector: {{- include "fencegate.gate.selectorLabels" . | nindent 4 }}
  ports:
    - name: api
      port: {{ .Values.api.service.port }}
      targetPort: {{ include "fencegate.port" $config.api.listen }}
      protocol: TCP
{{- end }}
{{- end -}}

{{/* The store's own port is not in here, so that a store that listens on all addresses by mistake is not reached. */}}
{{- define "fencegate.gate.networkPolicy" -}}
{{- if .Values.networkPolicy.enabled -}}
{{- $config := include "fencegate.gate.settings" . | fromJson -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "fencegate.fullname" . }}
  namespace: {{ .Release.Namespace }}
  labels: {{- include "fencegate.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels: {{- include "fencegate.gate.selectorLabels" . | nindent 6 }}
  policyTypes: [Ingress]
  ingress:
    - ports:
        - port: {{ include "fencegate.port" $config.gate.listen }}
          protocol: TCP
      {{- with .Values.networkPolicy.clients }}
      from: {{- toYaml . | nindent 8 }}
      {{- end }}
    {{- if .Values.api.expose }}
    - ports:
        - port: {{ include "fencegate.port" $config.api.listen }}
          protocol: TCP
      from: {{- toYaml .Values.networkPolicy.apiClients | nindent 8 }}
    {{- end }}
    {{- with .Values.networkPolicy.monitoring }}
    - ports:
        - port: {{ include "fencegate.port" $config.ops.listen }}
          protocol: TCP
      from: {{- toYaml . | nindent 8 }}
    {{- end }}
{{- end -}}
{{- end -}}

{{- define "fencegate.gate.podDisruptionBudget" -}}
{{- if .Values.podDisruptionBudget.enabled -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "fencegate.fullname" . }}
  namespace: {{ .Release.Namespace }}
  labels: {{- include "fencegate.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ .Values.podDisruptionBudget.maxUnavailable }}
  # A gate that does not start must not keep a node from being drained.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- include "fencegate.gate.selectorLabels" . | nindent 6 }}
{{- end -}}
{{- end -}}
