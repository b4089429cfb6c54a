# A Pulsar standalone broker from Maven Central, run by the machine's Java. The service's file sets: version, port (it
# uses port+1 for HTTP, and tells clients of the listener "proxied" to take port+9, where a test puts a proxy), and
# token=yes for one that asks for tokens.

# Services of one version share its files.
service_install() {
  [[ ! -d $home/lib ]] || return 0
  rm -rf "$home/lib.partial"
  fetch "$cache/pulsar-$version"
  cp -al "$cache/pulsar-$version/lib" "$home/lib.partial" && mv "$home/lib.partial" "$home/lib" || die "$name: the files of Pulsar $version could not be linked"
}

# fetch FOLDER puts Pulsar's files into lib in that folder, once.
fetch() {
  local folder=$1
  [[ ! -d $folder/lib ]] || return 0
  mkdir -p "$folder"
  command -v java >/dev/null || packages openjdk-17-jre-headless
  command -v mvn >/dev/null || packages maven
  say "fetching Pulsar $version (about 200 MB)"
  cat >"$folder/pom.xml" <<EOT
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>settle</groupId>
  <artifactId>pulsar</artifactId>
  <version>0</version>
  <dependencyManagement>
    <dependencies>
      <dependency><groupId>org.apache.pulsar</groupId><artifactId>pulsar</artifactId><version>$version</version><type>pom</type><scope>import</scope></dependency>
    </dependencies>
  </dependencyManagement>
  <dependencies>
    <dependency><groupId>org.apache.pulsar</groupId><artifactId>pulsar-broker</artifactId><version>$version</version></dependency>
  </dependencies>
</project>
EOT
  rm -rf "$folder/lib.partial"
  mvn -B -f "$folder/pom.xml" -Dmaven.repo.local="$folder/maven" dependency:copy-dependencies -DoutputDirectory="$folder/lib.partial" >"$folder/maven.log" 2>&1 ||
    die "$name: Maven could not fetch Pulsar $version; see $folder/maven.log"
  rm -rf "$folder/maven"
  mv "$folder/lib.partial" "$folder/lib"
}

service_start() {
  running broker && return 0
  free "$port" "$((port + 1))"
  # Data of a broker that never came up would keep the next one from coming up.
  [[ -e $home/made ]] || rm -rf "$home/data"
  in_place install -d -o nobody -g nogroup -m 755 /srv/data
  [[ -z ${token:-} || -e $home/token ]] || make_tokens || die "$name: the tokens could not be made; see $home/tokens.log"
  write_configuration
  # The memory is bounded: under 192 MB of heap the broker dies or hangs (measured on 4.0.7).
  spawn broker "${place[@]}" "${as_nobody[@]}" java -Xms256m -Xmx512m -XX:MaxDirectMemorySize=256m "${opens[@]}" -cp '/srv/lib/*' \
    -Dio.netty.tryReflectionSetAccessible=true \
    -Dbookkeeper.metadata.bookie.drivers=org.apache.pulsar.metadata.bookkeeper.PulsarMetadataBookieDriver \
    -Dbookkeeper.metadata.client.drivers=org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver \
    org.apache.pulsar.PulsarStandaloneStarter --config /srv/standalone.conf -nfw -nss \
    --bookkeeper-dir /srv/data/bookie --metadata-dir /srv/data/metadata
  wait_for 90 broker has_default_namespace
  touch "$home/made"
}

# place goes before a command that finds the service's folder in /srv; the mount is private and ends with it.
# shellcheck disable=SC2016 # the inner shell expands these
place=(unshare -m --propagation private bash -c 'mount --bind "$1" /srv && cd /srv && shift && exec "$@"' place "$home")
in_place() { "${place[@]}" "$@"; }

as_nobody=(setpriv --reuid=nobody --regid=nogroup --clear-groups env -i "PATH=$PATH" HOME=/srv/data)

# What Pulsar and its libraries reach for in the JDK.
opens=()
for package in java.base/sun.net java.management/sun.management jdk.management/com.sun.management.internal \
  java.base/jdk.internal.platform java.base/java.nio java.base/jdk.internal.misc; do
  opens+=(--add-opens "$package=ALL-UNNAMED")
done

# make_tokens makes a key and two tokens: of the role "settle", which may do everything, and of "guest", which may do nothing.
make_tokens() {
  local tool=("${place[@]}" java -cp '/srv/lib/*' org.apache.pulsar.utils.auth.tokens.TokensCliUtils)
  {
    "${tool[@]}" create-secret-key --output /srv/secret.key && chmod 644 "$home/secret.key" &&
      "${tool[@]}" create --secret-key file:///srv/secret.key --subject guest >"$home/guest.token" &&
      "${tool[@]}" create --secret-key file:///srv/secret.key --subject settle >"$home/token.new" &&
      mv "$home/token.new" "$home/token"
  } >"$home/tokens.log" 2>&1
}

write_configuration() {
  cat >"$home/standalone.conf" <<EOT
clusterName=standalone
brokerServicePort=$port
webServicePort=$((port + 1))
bindAddress=127.0.0.1
advertisedListeners=internal:pulsar://127.0.0.1:$port,proxied:pulsar://127.0.0.1:$((port + 9))
internalListenerName=internal
managedLedgerDefaultEnsembleSize=1
managedLedgerDefaultWriteQuorum=1
managedLedgerDefaultAckQuorum=1
acknowledgmentAtBatchIndexLevelEnabled=true
allowAutoTopicCreation=true
allowAutoTopicCreationType=non-partitioned
brokerDeleteInactiveTopicsEnabled=false
loadBalancerEnabled=false
journalSyncData=false
allowLoopback=true
listeningInterface=lo
EOT
  [[ -z ${token:-} ]] || cat >>"$home/standalone.conf" <<EOT
authenticationEnabled=true
authorizationEnabled=true
authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken
tokenSecretKey=file:///srv/secret.key
superUserRoles=settle
brokerClientAuthenticationPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken
brokerClientAuthenticationParameters=token:$(cat "$home/token")
EOT
}

# has_default_namespace: the broker has made public/default, the last thing it does when it starts.
has_default_namespace() (
  exec 3<>"/dev/tcp/127.0.0.1/$((port + 1))" &&
    printf 'GET /admin/v2/namespaces/public HTTP/1.0\r\nHost: localhost\r\n%s\r\n' "${token:+Authorization: Bearer $(cat "$home/token")$'\r\n'}" >&3 &&
    timeout 5 cat <&3 | grep -q '"public/default"'
)

service_runs() { running broker; }

service_stop() { halt broker TERM 20; }

service_restart() { service_stop && service_start; }

service_kill() { kill_hard broker; }

service_ctl() { die "$name has no command of its own: use its HTTP interface on 127.0.0.1:$((port + 1))"; }

service_env() {
  echo "$variable=pulsar://127.0.0.1:$port"
  echo "${variable%_URL}_ADMIN_URL=http://127.0.0.1:$((port + 1))"
  echo "${variable%_URL}_PROXY_ADDR=127.0.0.1:$((port + 9))"
  [[ -z ${token:-} ]] || echo "${variable%_URL}_TOKEN=$(cat "$home/token")"
  [[ -z ${token:-} ]] || echo "${variable%_URL}_GUEST_TOKEN=$(cat "$home/guest.token")"
}
