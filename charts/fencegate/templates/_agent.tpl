{{/* The agent in a writer's pod. */}}

{{/* A native sidecar: it is there before the writer, and gives its leases back when the writer is gone. Its holder's
name is left to it: the pod's name, and a word of its own for each process. */}}
{{- define "fencegate.agent.container" -}}
{{- include "fencegate.agent.validate" . -}}
{{- $config := include "fencegate.agent.settings" . | fromJson -}}
- name: fencegate-agent
  image: {{ include "fencegate.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  restartPolicy: Always
  command: [/fencegate]
  args: [agent, --config, /etc/fencegate-agent/agent.toml]
  terminationMessagePolicy: FallbackToLogsOnError
  {{- with .Values.agent.env }}
  env: {{- toYaml . | nindent 4 }}
  {{- end }}
  ports:
    - name: agent-status
      containerPort: {{ include "fencegate.port" $config.status.listen }}
      protocol: TCP
  startupProbe:
    httpGet:
      path: /readyz
      port: agent-status
    periodSeconds: 1
    timeoutSeconds: 1
    failureThreshold: 60
  readinessProbe:
    httpGet:
      path: /readyz
      port: agent-status
    periodSeconds: 5
    timeoutSeconds: 2
    failureThreshold: 2
  livenessProbe:
    httpGet:
      path: /livez
      port: agent-status
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  resources: {{- toYaml .Values.agent.resources | nindent 4 }}
  securityContext: {{- toYaml .Values.agent.securityContext | nindent 4 }}
  volumeMounts:
    - name: fencegate-agent-config
      mountPath: /etc/fencegate-agent/agent.toml
      subPath: agent.toml
      readOnly: true
    {{- if .Values.agent.tls.secretName }}
    - name: fencegate-agent-tls
      mountPath: /etc/fencegate-agent/tls
      readOnly: true
    {{- end }}
    {{- if include "fencegate.agent.showsToken" . }}
    - name: fencegate-agent-api-token
      mountPath: /var/run/secrets/fencegate
      readOnly: true
    {{- end }}
    {{- if include "fencegate.hasLeases" $config }}
    - name: fencegate-agent-token
      mountPath: /var/run/secrets/kubernetes.io/serviceaccount
      readOnly: true
    {{- end }}
{{- end -}}

{{- define "fencegate.agent.volumes" -}}
{{- $config := include "fencegate.agent.settings" . | fromJson -}}
- name: fencegate-agent-config
  configMap:
    name: {{ include "fencegate.fullname" . }}-agent
{{- with .Values.agent.tls.secretName }}
- name: fencegate-agent-tls
  secret:
    secretName: {{ . }}
    {{- /* A writer's pod need not have an fsGroup; only the agent mounts it. */}}
    defaultMode: 0444
{{- end }}
{{- if include "fencegate.agent.showsToken" . }}
{{- with .Values.agent.token }}
- name: fencegate-agent-api-token
  projected:
    {{- /* As with the certificate: the pod need not have an fsGroup, and only the agent mounts it. */}}
    defaultMode: 0444
    sources:
      - serviceAccountToken:
          path: token
          audience: {{ .audience | quote }}
          expirationSeconds: {{ .expirationSeconds }}
{{- end }}
{{- end }}
{{- if include "fencegate.hasLeases" $config }}
{{ include "fencegate.tokenVolume" "fencegate-agent-token" }}
{{- end }}
{{- end -}}

{{/* For the pod's annotations: a change of the settings starts it anew. */}}
{{- define "fencegate.agent.annotations" -}}
fencegate/agent-config-sha256: {{ include "fencegate.agent.settings" . | sha256sum }}
{{- end -}}

{{/* What a writer's pod needs at least, once the writer itself has stopped: the writes on their way, then up to eight
seconds to give the leases back, five for the last answers, and two for the kubelet. */}}
{{- define "fencegate.agent.graceSeconds" -}}
{{- add (divf (dig "shutdown" "deadline_ms" 25000 .Values.agent.config) 1000 | ceil) 15 -}}
{{- end -}}

{{- define "fencegate.agent.config" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "fencegate.fullname" . }}-agent
  namespace: {{ .Release.Namespace }}
  labels: {{- include "fencegate.labels" . | nindent 4 }}
data:
  agent.toml: |
    {{- include "fencegate.agent.settings" . | fromJson | include "fencegate.toml" | trim | nindent 4 }}
{{- end -}}
