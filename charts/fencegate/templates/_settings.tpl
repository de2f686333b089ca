{{/* What the values come to: the settings files, ports, namespaces and seconds that the other templates need. */}}

{{/* The gate's settings as JSON: gate.config, and what follows from other values. */}}
{{- define "fencegate.gate.settings" -}}
{{- $config := deepCopy .Values.gate.config -}}
{{- $gate := default dict $config.gate -}}
{{- with .Values.gate.tls.secretName -}}
{{- $_ := set $gate "tls_cert_file" "/etc/fencegate/tls/tls.crt" -}}
{{- $_ := set $gate "tls_key_file" "/etc/fencegate/tls/tls.key" -}}
{{- end -}}
{{- with .Values.gate.tls.clientCa.secretName -}}
{{- $_ := set $gate "tls_client_ca_file" "/etc/fencegate/client-ca/ca.crt" -}}
{{- end -}}
{{- $_ := set $config "gate" $gate -}}
{{- include "fencegate.spellAudit" $config -}}
{{- include "fencegate.exposeApi" (list . $config) -}}
{{- if eq .Values.table.kind "emptyDir" -}}
{{- /* `serve` makes it, and waits the store's bounds first, as after any start that was not clean. */ -}}
{{- $_ := set $config "table" (merge (dict "create" true) (default dict $config.table)) -}}
{{- end -}}
{{- include "fencegate.nameNamespaces" (list $config.route .Release.Namespace) -}}
{{- toJson $config -}}
{{- end -}}

{{/* The api for callers in other pods. What gate.config says goes before what is filled in here. Takes the context and
settings, which it changes. */}}
{{- define "fencegate.exposeApi" -}}
{{- $values := (first .).Values -}}
{{- $config := last . -}}
{{- $api := default dict $config.api -}}
{{- if $values.api.tls.secretName -}}
{{- $_ := set $api "tls_cert_file" "/etc/fencegate/api-tls/tls.crt" -}}
{{- $_ := set $api "tls_key_file" "/etc/fencegate/api-tls/tls.key" -}}
{{- end -}}
{{- if $values.api.tls.clientCa.secretName -}}
{{- $_ := set $api "tls_client_ca_file" "/etc/fencegate/api-client-ca/ca.crt" -}}
{{- end -}}
{{- if $values.api.expose -}}
{{- if include "fencegate.isLoopback" $api.listen -}}
{{- $_ := set $api "listen" (printf "%s:%s" (ternary "[::]" "0.0.0.0" (hasPrefix "[" $api.listen)) (include "fencegate.port" $api.listen)) -}}
{{- end -}}
{{- if not $config.identity -}}
{{- $sources := list (dict "name" "kubernetes" "kind" "kubernetes" "audience" "fencegate") -}}
{{- if $api.tls_client_ca_file -}}
{{- $sources = append $sources (dict "name" "certificates" "kind" "mtls") -}}
{{- end -}}
{{- $_ := set $config "identity" $sources -}}
{{- end -}}
{{- $_ := set $config "audit" (merge (default dict $config.audit) (dict "to" "stderr")) -}}
{{- /* A proxy, or a port-forward, passes the calls of others on from loopback. */ -}}
{{- $_ := set $config "access" (merge (default dict $config.access) (dict "loopback" "authenticate")) -}}
{{- end -}}
{{- $_ := set $config "api" $api -}}
{{- end -}}

{{/* YAML reads a bare `off` as false. Takes settings, which it changes. */}}
{{- define "fencegate.spellAudit" -}}
{{- with .audit -}}
{{- if kindIs "bool" .to -}}
{{- $_ := set . "to" "off" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* "true" where the gate asks the API server whose tokens callers show. */}}
{{- define "fencegate.reviewsTokens" -}}
{{- range .identity -}}
{{- if eq .kind "kubernetes" }}true{{ end -}}
{{- end -}}
{{- end -}}

{{/* A route's Lease is in the release's namespace, unless it says otherwise. */}}
{{- define "fencegate.nameNamespaces" -}}
{{- $namespace := last . -}}
{{- range first . -}}
{{- if and .kubernetes (not .kubernetes.namespace) -}}
{{- $_ := set .kubernetes "namespace" $namespace -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "fencegate.agent.settings" -}}
{{- $config := deepCopy .Values.agent.config -}}
{{- $gate := default dict $config.gate -}}
{{- with .Values.agent.tls -}}
{{- if .secretName -}}
{{- $_ := set $gate "tls_ca_file" "/etc/fencegate-agent/tls/ca.crt" -}}
{{- end -}}
{{- if .clientCertificate -}}
{{- $_ := set $gate "tls_cert_file" "/etc/fencegate-agent/tls/tls.crt" -}}
{{- $_ := set $gate "tls_key_file" "/etc/fencegate-agent/tls/tls.key" -}}
{{- end -}}
{{- end -}}
{{- if include "fencegate.agent.showsToken" . -}}
{{- $_ := set $gate "token_file" "/var/run/secrets/fencegate/token" -}}
{{- end -}}
{{- $_ := set $config "gate" $gate -}}
{{- include "fencegate.nameNamespaces" (list $config.route .Release.Namespace) -}}
{{- toJson $config -}}
{{- end -}}

{{/* "true" where the agent has a token of its pod's service account for the gate's api. It sends tokens over https. */}}
{{- define "fencegate.agent.showsToken" -}}
{{- with .Values.agent -}}
{{- if and .token.enabled (hasPrefix "https://" (default "" .config.gate.api)) (not .config.gate.token_file) }}true{{ end -}}
{{- end -}}
{{- end -}}

{{/* The port of an address: what is behind its last colon. */}}
{{- define "fencegate.port" -}}
{{- splitList ":" . | last -}}
{{- end -}}

{{/* "true" where only the pod itself can reach an address. */}}
{{- define "fencegate.isLoopback" -}}
{{- if or (hasPrefix "127." .) (hasPrefix "[::1]:" .) }}true{{ end -}}
{{- end -}}

{{/* "true" where a URL leads to the pod itself. */}}
{{- define "fencegate.isLocalUrl" -}}
{{- if regexMatch "^https?://(127\\.[0-9.]+|localhost|\\[::1\\])(:|/|$)" . }}true{{ end -}}
{{- end -}}

{{/* Namespaces with Leases, as JSON: those that routes name, and a list of others. Takes settings and that list. */}}
{{- define "fencegate.leaseNamespaces" -}}
{{- $config := first . -}}
{{- $found := list -}}
{{- if include "fencegate.hasLeases" $config -}}
{{- $found = last . -}}
{{- range $config.route -}}
{{- with .kubernetes -}}
{{- if not (contains "{" .namespace) -}}
{{- $found = append $found .namespace -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $found | uniq | sortAlpha | toJson -}}
{{- end -}}

{{/* "true" where a route goes by a Lease. */}}
{{- define "fencegate.hasLeases" -}}
{{- range .route -}}
{{- with .kubernetes }}true{{ end -}}
{{- end -}}
{{- end -}}

{{/* How long the gate may drain, in whole seconds. */}}
{{- define "fencegate.gate.drainSeconds" -}}
{{- divf (dig "shutdown" "deadline_ms" 25000 .Values.gate.config) 1000 | ceil | max 1 -}}
{{- end -}}

{{/* The gate drains while the store waits, then the store stops, then the gate does. It has a deadline of the same
length for that: answers that clients are still taking may hold it up. Behind it, it has two seconds to close its
table; the rest of the five is for the kubelet. A gate that is killed before its end starts unclean. */}}
{{- define "fencegate.gate.leastGraceSeconds" -}}
{{- $drain := include "fencegate.gate.drainSeconds" . | int -}}
{{- add $drain (.Values.store.stopSeconds | int) $drain 5 -}}
{{- end -}}

{{- define "fencegate.gate.graceSeconds" -}}
{{- default (include "fencegate.gate.leastGraceSeconds" . | int) .Values.workload.terminationGracePeriodSeconds -}}
{{- end -}}
