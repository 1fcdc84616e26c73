{{/* By which program the pods run: a digest says more than a tag. */}}
{{- define "strait.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag }}{{ end }}
{{- end -}}
{{- end }}

{{/* Of all objects, and of no pods: those would start anew with each version of the chart. */}}
{{- define "strait.labels" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Of the operator: its objects and its pods. */}}
{{- define "strait.operator.labels" -}}
app.kubernetes.io/name: strait-operator
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: strait
{{- end }}

{{/* Of the operator: what its pods are selected by. */}}
{{- define "strait.operator.selector" -}}
app.kubernetes.io/name: strait-operator
{{- end }}

{{/* Ports on which a NetworkPolicy lets out what goes to the API server. */}}
{{- define "strait.apiServerPorts" -}}
{{- range .Values.networkPolicy.apiServerPorts }}
- port: {{ . }}
  protocol: TCP
{{- end }}
{{- end }}

{{/* Where a NetworkPolicy lets probes and metrics in. A probe comes from the node, which no policy stops. */}}
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
A prefix, of which no bit is set behind its length: the API server takes no other. The context is a dict of `name`, the
value that it stands in, and `prefix`.
*/}}
{{- define "strait.prefix" -}}
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
{{- fail (printf "%s: %s has bits behind its length: write %s/%s" .name .prefix (join "." $bytes) (index $parts 1)) }}
{{- end }}
{{- .prefix }}
{{- end }}
