{{/* Values that contradict each other, which a schema cannot see. Each message says what to set. */}}

{{- define "fencegate.validate" -}}
{{- $values := .Values -}}
{{- $config := include "fencegate.gate.settings" . | fromJson -}}
{{- $loopback := include "fencegate.isLoopback" $config.gate.listen -}}
{{- include "fencegate.validate.table" . -}}
{{- include "fencegate.validate.ports" . -}}
{{- include "fencegate.validate.api" (list . $config) -}}
{{- range $place, $route := $config.route -}}
{{- $source := default "gate" $route.lease_source -}}
{{- $key := printf "gate.config.route[%d]" $place -}}
{{- if has $source (list "external" "kubernetes") -}}
{{- if eq $values.table.kind "emptyDir" -}}
{{- fail (printf "%s.lease_source is %s, and table.kind is emptyDir: with a new pod every old token would count as the first. Set table.kind: claim" $key $source) -}}
{{- end -}}
{{- if and (not $loopback) (not $config.gate.tls_client_ca_file) -}}
{{- fail (printf "%s.lease_source is %s: its tokens are no secrets, so every client that reaches the gate's port could move the fence. Set gate.tls.secretName and gate.tls.clientCa.secretName, to ask clients for certificates" $key $source) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $source "kubernetes") (not (dig "kubernetes" "name" "" $route)) -}}
{{- fail (printf "%s.lease_source is kubernetes, and nothing says which Lease: set %s.kubernetes.name" $key $key) -}}
{{- end -}}
{{- if and $route.kubernetes (ne $source "kubernetes") -}}
{{- fail (printf "%s.kubernetes is set, and its lease_source is %s: set lease_source: kubernetes, or remove it" $key $source) -}}
{{- end -}}
{{- with dig "store" "url" "" $route -}}
{{- include "fencegate.validate.store" (dict "context" $ "key" (printf "%s.store.url" $key) "url" .) -}}
{{- end -}}
{{- if and (contains "{" (dig "kubernetes" "namespace" "" $route)) (not (dig "kubernetes" "namespaces" list $config)) -}}
{{- fail (printf "%s.kubernetes.namespace depends on the path: set gate.config.kubernetes.namespaces to those that may be watched" $key) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.gate.tls.clientCa.secretName (not $config.gate.tls_cert_file) -}}
{{- fail "gate.tls.clientCa.secretName is set, and the gate does not serve https: set gate.tls.secretName" -}}
{{- end -}}
{{- include "fencegate.validate.store" (dict "context" . "key" "gate.config.store.url" "url" (dig "store" "url" "" $config)) -}}
{{- include "fencegate.validate.workload" . -}}
{{- end -}}

{{/* One store's address; takes a dict of context, key and url. */}}
{{- define "fencegate.validate.store" -}}
{{- $values := .context.Values -}}
{{- $shared := printf "unix:%s/" (trimSuffix "/" $values.store.socket.path) -}}
{{- if hasPrefix "unix:" .url -}}
{{- if and $values.standalone (not (and $values.store.socket.enabled (hasPrefix $shared .url))) -}}
{{- fail (printf "%s is %s, which gate and store do not share: set store.socket.enabled: true, and a path below store.socket.path" .key .url) -}}
{{- end -}}
{{- else if not (or $values.gate.allowRemoteStore (include "fencegate.isLocalUrl" .url)) -}}
{{- fail (printf "%s is %s, which clients can reach without the gate: bind the store to loopback or a Unix socket; or set gate.allowRemoteStore: true, if something else lets only this gate reach it" .key .url) -}}
{{- end -}}
{{- end -}}

{{- define "fencegate.validate.table" -}}
{{- $table := .Values.table -}}
{{- if and (eq $table.kind "emptyDir") (not $table.iKnowFencesDieWithThePod) -}}
{{- fail "table.kind is emptyDir: every fence is forgotten with the pod. Set table.kind: claim, or table.iKnowFencesDieWithThePod: true" -}}
{{- end -}}
{{- if and (ne $table.kind "emptyDir") $table.iKnowFencesDieWithThePod -}}
{{- fail "table.iKnowFencesDieWithThePod is set, and the table is on a claim: set table.kind: emptyDir, or leave it false" -}}
{{- end -}}
{{- if and (ne $table.kind "emptyDir") (dig "table" "create" false .Values.gate.config) -}}
{{- fail "gate.config.table.create is true: a lost volume would look like a new installation. Leave it out; table.init says who makes the table" -}}
{{- end -}}
{{- $folder := dig "table" "path" "" .Values.gate.config -}}
{{- if or (not (hasPrefix "/var/lib/fencegate/" $folder)) (contains ".." $folder) -}}
{{- fail "gate.config.table.path is not below /var/lib/fencegate, where the table's volume is" -}}
{{- end -}}
{{- if and (eq $table.init "job") (or .Release.IsUpgrade (eq $table.kind "emptyDir")) -}}
{{- fail "table.init: job is for `helm template ... | kubectl create -f -`, with a table on a claim. Set table.init to hook or never" -}}
{{- end -}}
{{- /* Kinds are known only where a cluster was asked: by `helm install`, or by Argo CD, which says what it found there.
`lookup` would need the right to read something that is in every cluster. */ -}}
{{- if and (eq $table.init "job") (.Capabilities.APIVersions.Has "v1/Pod") -}}
{{- fail "table.init is job, and this is no `helm template` by hand: what it renders is for `kubectl create`, once. Set table.init: hook for helm install, and never for Argo CD" -}}
{{- end -}}
{{- end -}}

{{- define "fencegate.validate.ports" -}}
{{- $config := .Values.gate.config -}}
{{- if not (or .Values.api.expose (include "fencegate.isLoopback" $config.api.listen)) -}}
{{- fail (printf "gate.config.api.listen is %s, and api.expose is false: callers in other pods need TLS, an identity and a grant. Set api.expose: true, which asks for these, or a loopback address, which in a pod is the pod" $config.api.listen) -}}
{{- end -}}
{{- if include "fencegate.isLoopback" $config.ops.listen -}}
{{- fail "gate.config.ops.listen is a loopback address, where the kubelet's probes do not get: set 0.0.0.0:9464. It shows no secret" -}}
{{- end -}}
{{- if and .Values.standalone (include "fencegate.isLoopback" $config.gate.listen) -}}
{{- fail "gate.config.gate.listen is a loopback address, and the Service would lead nowhere: set 0.0.0.0:8080" -}}
{{- end -}}
{{- $ports := list (include "fencegate.port" $config.gate.listen) (include "fencegate.port" $config.api.listen) (include "fencegate.port" $config.ops.listen) -}}
{{- if ne (len (uniq $ports)) 3 -}}
{{- fail (printf "gate.config: gate, api and ops listen on ports %s: set three different ones" (join ", " $ports)) -}}
{{- end -}}
{{- if has "0" $ports -}}
{{- fail "gate.config: port 0 is chosen at the start, so no other object can name it: set gate.listen, api.listen and ops.listen to real ones" -}}
{{- end -}}
{{- include "fencegate.validate.portNumbers" (dict "section" "gate.config" "ports" $ports) -}}
{{- $direct := dig "gate" "tls_cert_file" "" $config -}}
{{- if and $direct .Values.gate.tls.secretName -}}
{{- fail "gate.tls.secretName and gate.config.gate.tls_cert_file are both set: leave one of them out" -}}
{{- end -}}
{{- end -}}

{{/* The api, and who may call it. Takes the context and the gate's settings. */}}
{{- define "fencegate.validate.api" -}}
{{- $values := (first .).Values -}}
{{- $config := last . -}}
{{- $api := $config.api -}}
{{- if and $values.api.tls.secretName (dig "api" "tls_cert_file" "" $values.gate.config) -}}
{{- fail "api.tls.secretName and gate.config.api.tls_cert_file are both set: leave one of them out" -}}
{{- end -}}
{{- if and $values.api.tls.clientCa.secretName (not $api.tls_cert_file) -}}
{{- fail "api.tls.clientCa.secretName is set, and the api does not speak TLS: set api.tls.secretName" -}}
{{- end -}}
{{- if and $api.insecure_plaintext $api.tls_cert_file -}}
{{- fail "gate.config.api.insecure_plaintext is true, and the api has a certificate: leave one of them out" -}}
{{- end -}}
{{- if $values.api.expose -}}
{{- if not (or $api.tls_cert_file $api.insecure_plaintext) -}}
{{- fail "api.expose is true, and the api has no certificate: callers' tokens could be read on the network. Set api.tls.secretName; or gate.config.api.insecure_plaintext: true, where a mesh encrypts" -}}
{{- end -}}
{{- if and $api.insecure_plaintext (ne $config.access.loopback "authenticate") -}}
{{- fail (printf "gate.config.access.loopback is %s, and gate.config.api.insecure_plaintext is true: a mesh's proxy passes the calls of other pods on from loopback, and each of them could take any lease. Leave gate.config.access.loopback out, or set authenticate" $config.access.loopback) -}}
{{- end -}}
{{- if not $config.grant -}}
{{- fail "api.expose is true, and gate.config.grant is empty: without a grant every call is denied. Add a grant, with principals, operations and objects" -}}
{{- end -}}
{{- if and $values.networkPolicy.enabled (not $values.networkPolicy.apiClients) -}}
{{- fail "api.expose is true, and networkPolicy.apiClients is empty: it says which pods reach the api's port. Set at least one peer, as in [{podSelector: {}}]" -}}
{{- end -}}
{{- else if include "fencegate.reviewsTokens" $config -}}
{{- fail "gate.config.identity has a source of kind kubernetes, and api.expose is false: the chart gives the gate the right to review tokens only where the api is exposed. Set api.expose: true, or remove the source" -}}
{{- end -}}
{{- if and $config.grant (not $config.identity) -}}
{{- fail "gate.config.grant is set, and there is no gate.config.identity: no caller has a name that a grant could be for. Set api.expose: true, which adds one, or leave the grants out" -}}
{{- end -}}
{{- range $place, $source := $config.identity -}}
{{- if and (eq $source.kind "mtls") (not $api.tls_client_ca_file) -}}
{{- fail (printf "gate.config.identity[%d].kind is mtls, and nothing says which authorities count: set api.tls.clientCa.secretName" $place) -}}
{{- end -}}
{{- end -}}
{{- range $place, $grant := $config.grant -}}
{{- if not (or $grant.principals $grant.groups) -}}
{{- fail (printf "gate.config.grant[%d] names neither principals nor groups, so it is for no caller: set gate.config.grant[%d].principals" $place $place) -}}
{{- end -}}
{{- end -}}
{{- include "fencegate.validate.audit" . -}}
{{- end -}}

{{/* The root file system is read-only, and on the table's volume the log could fill the table's disk. Takes the context
and the gate's settings. */}}
{{- define "fencegate.validate.audit" -}}
{{- $values := (first .).Values -}}
{{- with (last .).audit -}}
{{- if and .file (ne .to "file") -}}
{{- fail (printf "gate.config.audit.file is set, and gate.config.audit.to is %s: set gate.config.audit.to: file, or leave the file out" (default "off" .to)) -}}
{{- end -}}
{{- if eq (default "off" .to) "file" -}}
{{- $file := default "" .file -}}
{{- $places := list -}}
{{- range $values.gate.volumeMounts -}}
{{- if and (hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) $file) (not .readOnly) -}}
{{- $places = append $places .mountPath -}}
{{- end -}}
{{- end -}}
{{- if or (not $places) (contains ".." $file) -}}
{{- fail "gate.config.audit.to is file, and gate.config.audit.file is on no volume of gate.volumeMounts that the gate may write: the rest of the container is read-only, and the table's disk is not for it. Set both, or gate.config.audit.to: stderr" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Takes a dict of section and ports. */}}
{{- define "fencegate.validate.portNumbers" -}}
{{- range .ports -}}
{{- if gt (atoi .) 65535 -}}
{{- fail (printf "%s has port %s: there is none beyond 65535. Set a lower one" $.section .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels that pods are found by, and Helm's own: twice in one object, the second would count. */}}
{{- define "fencegate.validate.labels" -}}
{{- range $section := list "commonLabels" "podLabels" -}}
{{- range $label, $_ := index $.Values $section -}}
{{- if regexMatch "^(app\\.kubernetes\\.io/(name|instance|component|version|managed-by)|helm\\.sh/chart)$" $label -}}
{{- fail (printf "%s has %s, which the chart sets itself: use a label of your own; nameOverride changes app.kubernetes.io/name" $section $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "fencegate.validate.workload" -}}
{{- include "fencegate.validate.labels" . -}}
{{- with .Values.workload -}}
{{- if gt (int .replicas) 1 -}}
{{- fail (printf "workload.replicas is %d: more than one gate before one store needs a fleet, which this version does not have. Set 1, and install one release per store" (int .replicas)) -}}
{{- end -}}
{{- if and (eq .kind "Deployment") (ne .strategy.type "Recreate") -}}
{{- fail (printf "workload.strategy.type is %s: a Deployment that surges has two gates on one table. Set Recreate, or workload.kind: StatefulSet" .strategy.type) -}}
{{- end -}}
{{- $least := include "fencegate.gate.leastGraceSeconds" $ | int -}}
{{- if lt (include "fencegate.gate.graceSeconds" $ | int) $least -}}
{{- fail (printf "workload.terminationGracePeriodSeconds is %d: the drain (gate.config.shutdown.deadline_ms), store.stopSeconds, the gate's own stop (that deadline again) and five more take up to %d. Set at least that, or leave it empty" (int .terminationGracePeriodSeconds) $least) -}}
{{- end -}}
{{- if and (eq .kind "Deployment") $.Values.store.volumeClaimTemplates -}}
{{- fail "store.volumeClaimTemplates need a StatefulSet: set workload.kind: StatefulSet, or use extraVolumes" -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.store.drainWait.kind "sleep") (semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "store.drainWait.kind is sleep, which Kubernetes %s does not have by default: the store would stop before the gate has drained. Set auto, or exec" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and .Values.standalone (not .Values.store.image) -}}
{{- fail "store.image is empty: set the image of the store that the gate stands before; or standalone: false, to include the templates in a chart of your own" -}}
{{- end -}}
{{- range .Values.gate.env -}}
{{- /* In any case: the program takes FENCEGATE__table__create for what it is. */ -}}
{{- if regexMatch "(?i)^FENCEGATE__(TABLE__|STORE__URL$|SHUTDOWN__|[A-Z]+__LISTEN$|ROUTE__|KUBERNETES__|API__|ACCESS__|IDENTITY__|GRANT__|AUDIT__)" (toString .name) -}}
{{- fail (printf "gate.env has %s, which nothing here could check: set it in gate.config" .name) -}}
{{- end -}}
{{- end -}}
{{- range .Values.gate.volumeMounts -}}
{{- if hasPrefix "/var/lib/fencegate" (clean (toString .mountPath)) -}}
{{- fail (printf "gate.volumeMounts has %s, which would lie over the table's volume: mount it elsewhere" .mountPath) -}}
{{- end -}}
{{- end -}}
{{- with .Values.podDisruptionBudget -}}
{{- if and .enabled (regexMatch "^0+%?$" (toString .maxUnavailable)) -}}
{{- fail "podDisruptionBudget.maxUnavailable is 0: with one replica, no node could ever be drained. Set 1" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.monitoring.serviceMonitor.enabled .Values.monitoring.podMonitor.enabled -}}
{{- fail "monitoring.serviceMonitor and monitoring.podMonitor are both on, and everything would be counted twice: leave one off" -}}
{{- end -}}
{{- end -}}

{{- define "fencegate.agent.validate" -}}
{{- $config := include "fencegate.agent.settings" . | fromJson -}}
{{- if not (or (include "fencegate.isLoopback" $config.agent.listen) (dig "listen_beyond_loopback" false $config.agent)) -}}
{{- fail (printf "agent.config.agent.listen is %s: every client of the agent writes as the holder. Set a loopback address, or agent.config.agent.listen_beyond_loopback: true" $config.agent.listen) -}}
{{- end -}}
{{- if include "fencegate.isLoopback" $config.status.listen -}}
{{- fail "agent.config.status.listen is a loopback address, where the kubelet's probes do not get: set 0.0.0.0:9465. It shows no secret" -}}
{{- end -}}
{{- if and .Values.agent.tls.clientCertificate (not .Values.agent.tls.secretName) -}}
{{- fail "agent.tls.clientCertificate is set: set agent.tls.secretName, where it is" -}}
{{- end -}}
{{- include "fencegate.validate.portNumbers" (dict "section" "agent.config" "ports" (list (include "fencegate.port" $config.agent.listen) (include "fencegate.port" $config.status.listen))) -}}
{{- if and (include "fencegate.hasLeases" $config) .Values.rbac.create (not .Values.agent.serviceAccountName) -}}
{{- fail "an agent's route takes a Lease: set agent.serviceAccountName to the writer's, so that it may; or rbac.create: false" -}}
{{- end -}}
{{- /* Without a route it has one of its own, which goes by the gate's leases. */ -}}
{{- range $place, $route := default (list dict) $config.route -}}
{{- $key := printf "agent.config.route[%d].kubernetes" $place -}}
{{- if and (not $route.kubernetes) (include "fencegate.isLocalUrl" $config.gate.api) (not (include "fencegate.isLocalUrl" $config.gate.url)) -}}
{{- fail (printf "%s is not set, so the gate's own leases lead, and agent.config.gate.api is %s: that is the writer's own pod, and the gate is at %s. Set agent.config.gate.api to the https address of the gate's api (api.expose); or %s, with lease_source: kubernetes on the gate's route; or gate.url to the same tunnel" $key $config.gate.api $config.gate.url $key) -}}
{{- end -}}
{{- if and (not $route.kubernetes) (not (include "fencegate.isLocalUrl" $config.gate.api)) -}}
{{- if not (hasPrefix "https://" $config.gate.api) -}}
{{- fail (printf "agent.config.gate.api is %s: the agent shows who it is over https only. Set the https address of the gate's api" $config.gate.api) -}}
{{- end -}}
{{- if not (or $config.gate.token_file $config.gate.tls_cert_file) -}}
{{- fail (printf "agent.config.gate.api is %s, and the agent has nothing to show there: set agent.token.enabled: true, or agent.tls.clientCertificate: true for a certificate that the api takes" $config.gate.api) -}}
{{- end -}}
{{- end -}}
{{- if $route.kubernetes -}}
{{- if not (dig "name" "" $route.kubernetes) -}}
{{- fail (printf "%s says nothing of which Lease: set %s.name" $key $key) -}}
{{- end -}}
{{- if and (contains "{" (dig "namespace" "" $route.kubernetes)) (not (dig "kubernetes" "namespaces" list $config)) -}}
{{- fail (printf "%s.namespace depends on the path: set agent.config.kubernetes.namespaces to those that Leases may be taken in" $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
