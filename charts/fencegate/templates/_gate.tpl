{{/* The gate in a pod: container, volumes, and what the store's container needs. */}}

{{/* A native sidecar, for a pod's initContainers: an init container that goes on running. The containers behind it
start when its startupProbe has succeeded, and it ends after them. Its preStop begins with the pod's end. */}}
{{- define "fencegate.gate.container" -}}
{{- include "fencegate.validate" . -}}
{{- $config := include "fencegate.gate.settings" . | fromJson -}}
- name: fencegate
  image: {{ include "fencegate.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  restartPolicy: Always
  command: [/fencegate]
  args: [serve, --config, /etc/fencegate/fencegate.toml]
  # So that `kubectl describe pod` says why it does not start.
  terminationMessagePolicy: FallbackToLogsOnError
  {{- with .Values.gate.env }}
  env: {{- toYaml . | nindent 4 }}
  {{- end }}
  ports:
    - name: gate
      containerPort: {{ include "fencegate.port" $config.gate.listen }}
      protocol: TCP
    {{- if .Values.api.expose }}
    - name: api
      containerPort: {{ include "fencegate.port" $config.api.listen }}
      protocol: TCP
    {{- end }}
    - name: ops
      containerPort: {{ include "fencegate.port" $config.ops.listen }}
      protocol: TCP
  startupProbe:
    httpGet:
      path: /readyz
      port: ops
    periodSeconds: 1
    timeoutSeconds: 1
    failureThreshold: {{ .Values.gate.startupProbe.seconds }}
  readinessProbe:
    httpGet:
      path: /readyz
      port: ops
    periodSeconds: 5
    timeoutSeconds: 2
    failureThreshold: 2
  livenessProbe:
    httpGet:
      path: /livez
      port: ops
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  lifecycle:
    preStop:
      exec:
        command: [/fencegate, drain, --ops, "http://127.0.0.1:{{ include "fencegate.port" $config.ops.listen }}"]
  resources: {{- toYaml .Values.gate.resources | nindent 4 }}
  securityContext: {{- toYaml .Values.gate.securityContext | nindent 4 }}
  volumeMounts:
    - name: fencegate-config
      mountPath: /etc/fencegate/fencegate.toml
      subPath: fencegate.toml
      readOnly: true
    - name: fencegate-table
      mountPath: /var/lib/fencegate
    {{- if .Values.gate.tls.secretName }}
    - name: fencegate-tls
      mountPath: /etc/fencegate/tls
      readOnly: true
    {{- end }}
    {{- if .Values.gate.tls.clientCa.secretName }}
    - name: fencegate-client-ca
      mountPath: /etc/fencegate/client-ca
      readOnly: true
    {{- end }}
    {{- if .Values.api.tls.secretName }}
    - name: fencegate-api-tls
      mountPath: /etc/fencegate/api-tls
      readOnly: true
    {{- end }}
    {{- if .Values.api.tls.clientCa.secretName }}
    - name: fencegate-api-client-ca
      mountPath: /etc/fencegate/api-client-ca
      readOnly: true
    {{- end }}
    {{- if or (include "fencegate.hasLeases" $config) (include "fencegate.reviewsTokens" $config) }}
    - name: fencegate-token
      mountPath: /var/run/secrets/kubernetes.io/serviceaccount
      readOnly: true
    {{- end }}
    {{- if .Values.store.socket.enabled }}
    {{- include "fencegate.store.socketMount" . | nindent 4 }}
    {{- end }}
    {{- with .Values.gate.volumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "fencegate.gate.volumes" -}}
{{- $config := include "fencegate.gate.settings" . | fromJson -}}
- name: fencegate-config
  configMap:
    name: {{ include "fencegate.fullname" . }}
- name: fencegate-table
  {{- if eq .Values.table.kind "emptyDir" }}
  emptyDir: {}
  {{- else }}
  persistentVolumeClaim:
    claimName: {{ include "fencegate.claimName" . }}
  {{- end }}
{{- with .Values.gate.tls.secretName }}
- name: fencegate-tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with .Values.gate.tls.clientCa }}
{{- if .secretName }}
- name: fencegate-client-ca
  secret:
    secretName: {{ .secretName }}
    defaultMode: 0440
    items:
      - key: {{ .key }}
        path: ca.crt
{{- end }}
{{- end }}
{{- with .Values.api.tls.secretName }}
- name: fencegate-api-tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with .Values.api.tls.clientCa }}
{{- if .secretName }}
- name: fencegate-api-client-ca
  secret:
    secretName: {{ .secretName }}
    defaultMode: 0440
    items:
      - key: {{ .key }}
        path: ca.crt
{{- end }}
{{- end }}
{{- if or (include "fencegate.hasLeases" $config) (include "fencegate.reviewsTokens" $config) }}
{{ include "fencegate.tokenVolume" "fencegate-token" }}
{{- end }}
{{- if .Values.store.socket.enabled }}
- name: fencegate-socket
  emptyDir:
    medium: Memory
    sizeLimit: 1Mi
{{- end }}
{{- end -}}

{{/* The service account's token for one container of a pod, where automounting would give it to all of them. */}}
{{- define "fencegate.tokenVolume" -}}
- name: {{ . }}
  projected:
    defaultMode: 0444
    sources:
      - serviceAccountToken:
          path: token
          expirationSeconds: 3607
      - configMap:
          name: kube-root-ca.crt
          items:
            - key: ca.crt
              path: ca.crt
      - downwardAPI:
          items:
            - path: namespace
              fieldRef:
                apiVersion: v1
                fieldPath: metadata.namespace
{{- end -}}

{{/* For the pod's annotations: a change of the settings starts it anew. */}}
{{- define "fencegate.gate.annotations" -}}
fencegate/config-sha256: {{ include "fencegate.gate.settings" . | sha256sum }}
{{- end -}}

{{/* The lifecycle of the store's container. Kubernetes stops all containers of a pod at the same time, and the gate
still has writes to finish. So the store waits for as long as the gate may drain, and stops then. */}}
{{- define "fencegate.store.lifecycle" -}}
{{- $kind := .Values.store.drainWait.kind -}}
{{- if eq $kind "auto" -}}
{{- /* The kubelet's own sleep is off by default at 1.29. */ -}}
{{- $kind = ternary "sleep" "exec" (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
preStop:
  {{- if eq $kind "sleep" }}
  sleep:
    seconds: {{ include "fencegate.gate.drainSeconds" . }}
  {{- else }}
  exec:
    command: {{ append .Values.store.drainWait.command (include "fencegate.gate.drainSeconds" .) | toJson }}
  {{- end }}
{{- end -}}

{{- define "fencegate.store.socketMount" -}}
- name: fencegate-socket
  mountPath: {{ .Values.store.socket.path }}
{{- end -}}

{{/* Of a Deployment. Every other strategy has the old pod and the new one at once. */}}
{{- define "fencegate.gate.strategy" -}}
type: {{ .Values.workload.strategy.type }}
{{- end -}}

{{- define "fencegate.gate.config" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "fencegate.fullname" . }}
  namespace: {{ .Release.Namespace }}
  labels: {{- include "fencegate.labels" . | nindent 4 }}
data:
  fencegate.toml: |
    {{- include "fencegate.gate.settings" . | fromJson | include "fencegate.toml" | trim | nindent 4 }}
{{- end -}}
