{{/* The image of all pods. A digest takes precedence over the tag. */}}
{{- define "strait.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag }}{{ end }}
{{- end -}}
{{- end }}

{{/* Labels of all objects, but not of pods, which would restart with each version of the chart. */}}
{{- define "strait.labels" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Labels of the operator's objects and pods. */}}
{{- define "strait.operator.labels" -}}
app.kubernetes.io/name: strait-operator
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: strait
{{- end }}

{{/* Labels that select the operator's pods. */}}
{{- define "strait.operator.selector" -}}
app.kubernetes.io/name: strait-operator
{{- end }}

{{/* Volumes, or where they are mounted, without the device node of TUN. */}}
{{- define "strait.withoutTun" -}}
{{- range . }}
{{- if ne .name "tun" }}
- {{ toYaml . | nindent 2 | trim }}
{{- end }}
{{- end }}
{{- end }}

{{/* Ports of the API server, for the egress of a NetworkPolicy. */}}
{{- define "strait.apiServerPorts" -}}
{{- range .Values.networkPolicy.apiServerPorts }}
- port: {{ . }}
  protocol: TCP
{{- end }}
{{- end }}

{{/* Ports of metrics and probes, for the ingress of a NetworkPolicy. Probes come from the node, to which no policy applies. */}}
{{- define "strait.adminPorts" -}}
- ports:
  - port: metrics
    protocol: TCP
  - port: healthz
    protocol: TCP
  {{- with .Values.networkPolicy.metricsFrom }}
  from:
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/*
A prefix without host bits: the API server rejects others. The context is a dict of `name`, the name of the value, and
`prefix`.
*/}}
{{- define "strait.prefix" -}}
{{- /* Host bits of IPv6 are refused by the API server alone. */ -}}
{{- if contains ":" .prefix }}
{{- .prefix | quote }}
{{- else }}
{{- $parts := splitList "/" .prefix }}
{{- $address := 0 }}
{{- range splitList "." (index $parts 0) }}
{{- $address = add (mul $address 256) (int64 .) }}
{{- end }}
{{- $size := 1 }}
{{- range until (int (sub 32 (int64 (index $parts 1)))) }}
{{- $size = mul $size 2 }}
{{- end }}
{{- $rest := mod $address $size }}
{{- if $rest }}
{{- $network := sub $address $rest }}
{{- $bytes := list }}
{{- range list 16777216 65536 256 1 }}
{{- $bytes = append $bytes (mod (div $network .) 256) }}
{{- end }}
{{- fail (printf "%s: %s has host bits: write %s/%s" .name .prefix (join "." $bytes) (index $parts 1)) }}
{{- end }}
{{- .prefix }}
{{- end }}
{{- end }}

{{- /* A prefix, or a list of prefixes. */ -}}
{{- define "strait.list" -}}
{{- if kindIs "slice" . }}{{ join " and " . }}{{ else }}{{ . }}{{ end }}
{{- end }}
