{{/* The claim that the fence table lies on, and the Job that makes the table of a new installation.

A lost volume must not look like a new installation, so nothing that runs again and again may make a table. With
`table.init: hook` it is `helm install` that does, by hooks, and only where the claim is not there yet. Upgrades,
restarts and installations over a claim that was kept make none: the gate then says that its table is missing. */}}

{{/* "true" while this very rendering begins a new installation. Without a cluster to ask, no claim is there. */}}
{{- define "fencegate.table.isNew" -}}
{{- if and .Release.IsInstall (not .Values.table.claim.existing) -}}
{{- if not (lookup "v1" "PersistentVolumeClaim" .Release.Namespace (include "fencegate.claimName" .)) }}true{{ end -}}
{{- end -}}
{{- end -}}

{{- define "fencegate.table" -}}
{{- if eq .Values.table.kind "claim" -}}
{{- $hook := eq .Values.table.init "hook" -}}
{{- $new := include "fencegate.table.isNew" . -}}
{{- if and (not .Values.table.claim.existing) (or (not $hook) $new) }}
---
{{ include "fencegate.table.claim" . }}
{{- end }}
{{- if or (eq .Values.table.init "job") (and $hook $new) }}
---
{{ include "fencegate.initJob" . }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* Argo CD would run Helm's hooks with every sync, and delete them before. An annotation makes it ignore these. */}}
{{- define "fencegate.table.claim" -}}
{{- $hook := eq .Values.table.init "hook" -}}
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {{ include "fencegate.claimName" . }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "fencegate.labels" . | nindent 4 }}
    app.kubernetes.io/component: table
  annotations:
    helm.sh/resource-policy: keep
    # So that a release can take it for its own later, when table.init changes.
    meta.helm.sh/release-name: {{ .Release.Name }}
    meta.helm.sh/release-namespace: {{ .Release.Namespace }}
    {{- if $hook }}
    helm.sh/hook: pre-install
    helm.sh/hook-weight: "-2"
    # Not the default, which deletes a claim that is there before it makes another.
    helm.sh/hook-delete-policy: hook-failed
    argocd.argoproj.io/hook: Skip
    {{- else }}
    argocd.argoproj.io/sync-options: Prune=false,Delete=false
    {{- end }}
    {{- with .Values.table.claim.annotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  accessModes: [{{ .Values.table.claim.accessMode }}]
  {{- with .Values.table.claim.storageClassName }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests:
      storage: {{ .Values.table.claim.size }}
{{- end -}}

{{/* Its settings come by the environment: a hook runs before the release's ConfigMap exists. If there is a table
already, the Job fails with exit code 2 and changes nothing. Each other fault that another try would not end does that too. */}}
{{- define "fencegate.initJob" -}}
{{- $config := include "fencegate.gate.settings" . | fromJson -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ include "fencegate.fullname" . }}-table-init
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "fencegate.labels" . | nindent 4 }}
    app.kubernetes.io/component: table-init
  annotations:
    {{- if eq .Values.table.init "hook" }}
    helm.sh/hook: pre-install
    helm.sh/hook-weight: "-1"
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
    {{- end }}
    argocd.argoproj.io/hook: Skip
spec:
  backoffLimit: 3
  podFailurePolicy:
    rules:
      - action: FailJob
        onExitCodes:
          containerName: table-init
          operator: In
          values: [2]
      - action: Ignore
        onPodConditions:
          - type: DisruptionTarget
            status: "True"
  template:
    metadata:
      annotations:
        linkerd.io/inject: disabled
      labels:
        # A mesh's sidecar would keep the Job from ever ending, and it needs no network.
        sidecar.istio.io/inject: "false"
        app.kubernetes.io/name: {{ include "fencegate.name" . }}
        app.kubernetes.io/instance: {{ .Release.Name }}
        app.kubernetes.io/component: table-init
        {{- with .Values.commonLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      restartPolicy: Never
      automountServiceAccountToken: false
      enableServiceLinks: false
      {{- with .Values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext: {{- toYaml .Values.podSecurityContext | nindent 8 }}
      {{- with include "fencegate.placement" . }}
      {{- . | nindent 6 }}
      {{- end }}
      containers:
        - name: table-init
          image: {{ include "fencegate.image" . | quote }}
          imagePullPolicy: {{ .Values.image.pullPolicy }}
          command: [/fencegate]
          args: [table, init, --config, /dev/null]
          terminationMessagePolicy: FallbackToLogsOnError
          env:
            - name: FENCEGATE__TABLE__PATH
              value: {{ $config.table.path }}
          resources: {{- toYaml .Values.gate.resources | nindent 12 }}
          securityContext: {{- toYaml .Values.gate.securityContext | nindent 12 }}
          volumeMounts:
            - name: fencegate-table
              mountPath: /var/lib/fencegate
      volumes:
        - name: fencegate-table
          persistentVolumeClaim:
            claimName: {{ include "fencegate.claimName" . }}
{{- end -}}

{{/* Where pods may run: the gate's, and the Job's whose volume the gate's pod has to reach afterwards. */}}
{{- define "fencegate.placement" -}}
{{- $found := dict -}}
{{- range $key := list "nodeSelector" "tolerations" "affinity" -}}
{{- with index $.Values $key -}}
{{- $_ := set $found $key . -}}
{{- end -}}
{{- end -}}
{{- with $found }}{{ toYaml . }}{{ end -}}
{{- end -}}
